"""Recordings of what Legato does today, seen from outside. A rename must change none of them."""
