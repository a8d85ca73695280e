"""Reference client of the server, used by the benchmark, the command line and tests.

HTTP needs only the standard library; WebSockets need the package `websockets`.
"""
