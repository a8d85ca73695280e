"""Compare Legato with other Qwen3-TTS packages from PyPI on one machine. Not part of the package."""
