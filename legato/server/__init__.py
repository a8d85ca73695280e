"""The engine behind HTTP and WebSockets: an ASGI application that never computes on the event loop."""
