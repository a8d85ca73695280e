"""Checkpoints: finding and reading files, name mapping, loading, quantization, and random checkpoints."""
