"""legato."""
