"""Decoder layers in C: an optional way to run 8-bit weights, compiled for this CPU where there is a compiler."""
