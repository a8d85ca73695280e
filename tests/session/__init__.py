"""Tests of the session package, with a fake clock, engine and device."""
