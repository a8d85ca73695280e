"""The LM inside one frame: the first code in, all codes of the frame out. Its state lives for one frame."""
