"""Recordings of Legato's behaviour as seen from outside. A refactoring must not change them."""
