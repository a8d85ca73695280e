"""Tests of the engine: pure decisions alone, then the loop with scripted and with tiny models."""
