"""The DashScope realtime WebSocket route."""
