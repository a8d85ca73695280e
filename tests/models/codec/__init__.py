"""Tests of the codec. Tiny sizes, live weights."""
