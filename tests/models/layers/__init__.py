"""Tests of the shared layers, one file for each."""
