"""Tests of sessions: a fake clock, a fake engine, a fake device."""
