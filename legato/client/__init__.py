"""The reference client of the server, for bench, command line and tests.

HTTP needs the standard library alone, WebSockets the package `websockets`.
"""
