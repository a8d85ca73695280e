"""Tests of what is compiled for this CPU."""
