"""From the client's text to the talker's tokens and prompt plan. No tensors."""
