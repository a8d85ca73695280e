"""Checks that anyone can run: streamed equals whole, with controls that must fail. Correctness alone, never speed."""
