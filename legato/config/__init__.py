"""Frozen settings: model configuration from a checkpoint, engine and server settings, environment variables."""
