"""Frozen settings: the model's from the checkpoint's JSON, and our own. The only reader of the environment."""
