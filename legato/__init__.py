"""Legato: exact streaming inference for Qwen3-TTS-class speech models. Importing it loads neither torch nor numpy."""
