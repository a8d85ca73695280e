"""Audio input and output: reference recordings in, encoded files and streams out."""
