"""The `legato` command: one module per command. The only layer that prints or changes process-wide settings."""
