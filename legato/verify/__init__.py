"""Checks of exactness that anyone can run: slow, plain oracles and the comparison of stages."""
