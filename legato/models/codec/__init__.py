"""The codec: codes to samples and back, exact in windows of any size. Owns weights and state types, knows no engine."""
