"""Sound at the edge: reference files in to 24 kHz mono, packets out to PCM, WAV, FLAC, MP3 and Opus."""
