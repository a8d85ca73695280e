"""Layers that more than one model is built of. They own weights alone; what the past left behind is an argument."""
