"""Weights and arithmetic. State is an argument of every call, and no module keeps any."""
