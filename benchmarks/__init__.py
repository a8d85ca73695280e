"""Comparisons with others. Nothing here is a dependency of the package or of its tests."""
