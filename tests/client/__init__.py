"""Tests of the reference client."""
