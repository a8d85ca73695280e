"""Tests of the benchmarks: what they report, never how fast this machine is."""
