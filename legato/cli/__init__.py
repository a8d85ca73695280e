"""The command `legato`: one small file a command. The only layer that prints or sets anything for the process."""
