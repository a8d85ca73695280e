"""Tests of the codec, with tiny sizes and random weights."""
