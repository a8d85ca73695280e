"""Tests of the checks themselves. A check that cannot fail proves nothing."""
