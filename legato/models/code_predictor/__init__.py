"""The code predictor: the LM over the codebooks of one frame. Its KV scratch exists for one frame."""
