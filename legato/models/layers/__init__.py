"""Layers shared by several models. Modules hold weights only; state (history, KV cache) is an argument."""
