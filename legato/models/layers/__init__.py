"""Arithmetic that several models share: norms, rotary positions, attention, MLP, causal convolutions."""
