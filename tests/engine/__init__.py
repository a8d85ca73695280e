"""Tests of the engine: pure functions, engine steps with scripted and tiny models, and the engine thread."""
