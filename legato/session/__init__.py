"""One client session: utterance order, playback position, interruption and flow control. No I/O, no torch."""
