"""The reference client of the server, for bench, command line and tests. Needs the standard library alone."""
