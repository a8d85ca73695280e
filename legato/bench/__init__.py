"""Benchmarks of speed and memory. Correctness is checked separately, in `legato.verify`."""
