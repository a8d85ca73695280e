"""The page in a real browser: sound, interruptions, looks."""
