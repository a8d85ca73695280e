"""Tests of the recipe modules that need no optional package."""
