"""Tests of the server, over real sockets where a socket matters."""
