"""Paths of the recipe. All generated files are in one cache folder outside the repository."""

from __future__ import annotations

import os
from pathlib import Path

CACHE = Path(os.environ.get("LEGATO_VOICE_CACHE", "~/.cache/legato/voice")).expanduser()
DOWNLOADS = CACHE / "dl"
ASSETS = CACHE / "assets"
KOKORO_INT8 = ASSETS / "kokoro-int8.onnx"
KOKORO_F32 = ASSETS / "kokoro-f32.onnx"
KOKORO_VOCABULARY = ASSETS / "kokoro-vocab.json"
KOKORO_VOICES = ASSETS / "voices"
WHISPER = ASSETS / "whisper-tiny.en"
WORDNET = ASSETS / "wordnet"
SENTENCES = CACHE / "sentences.jsonl"
SPEECH = CACHE / "speech"
CODEC = CACHE / "codec"
LOGS = CACHE / "logs"

HELD_OUT = Path(__file__).with_name("sentences_heldout.json")
VOICE_FOLDER = Path(__file__).resolve().parents[2] / "legato" / "assets" / "voice"
