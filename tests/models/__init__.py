"""Tests of the models, with tiny sizes and random weights."""
