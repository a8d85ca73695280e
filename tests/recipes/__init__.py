"""Tests of the parts of the recipes that need no optional package."""
