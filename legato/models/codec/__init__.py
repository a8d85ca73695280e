"""Codes to samples and samples to codes, window by window, exactly: each call takes a history and returns the next."""
