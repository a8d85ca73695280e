"""The WebSocket route `/v1/audio/speech/stream`."""
