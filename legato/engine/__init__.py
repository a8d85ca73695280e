"""Continuous batching: schedules sequences, runs the models, decodes audio, and delivers packets.

The engine owns all tensors that are not weights.
"""
