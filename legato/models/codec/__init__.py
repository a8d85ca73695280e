"""The causal neural codec (12 Hz tokenizer): decoder, encoder, quantizers and streaming state."""
