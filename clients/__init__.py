"""Runs clients of other projects against a server of this one (`make test-clients`)."""
