"""talker."""
