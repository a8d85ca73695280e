"""The OpenAI-compatible HTTP routes."""
