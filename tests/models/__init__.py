"""Tests of the models. Tiny sizes, live weights."""
