"""Tests of the shared layers. One file a layer."""
