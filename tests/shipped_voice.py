"""What the voice in this repository says for fixed texts and seeds. `python -m tests.shipped_voice` records it anew."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from legato.config.engine import EngineConfig
from legato.engine.resolve import SpeechRequest, resolve
from legato.models.load import load_model
from legato.verify.rig import Outcome, Rig
from legato.verify.subject import Depth, Subject

FOLDER = Path(str(files("legato").joinpath("assets/voice")))
RECORD = Path(__file__).with_name("fixtures") / "voice" / "codes.json"
CASES = (
    ("Good morning, and welcome.", "heart", 1),
    ("It was 98.6°F at 9 a.m.", "michael", 2),
)


def subject() -> Subject:
    """The shipped voice in float32, as the engine loads it."""
    return Subject.of(load_model(FOLDER), Depth(), seed=0)


def spoken(voice: Subject, text: str, speaker: str, seed: int) -> Outcome:
    """One text through the engine's own loop, in deterministic mode."""
    asked = SpeechRequest(voice=speaker, seed=seed)
    request = resolve(asked, voice.model.config, voice.front_end, voice.voices, whole_text=True).request
    rig = Rig(voice, EngineConfig(streams=1, kv_slots=1, positions=256, deterministic=True))
    client = rig.submit(request, text)
    rig.run()
    return rig.outcome(client)


def record() -> None:
    """Write the record."""
    voice = subject()
    rows = [
        {
            "text": text,
            "voice": speaker,
            "seed": seed,
            "codes": [list(f) for f in spoken(voice, text, speaker, seed).codes],
        }
        for text, speaker, seed in CASES
    ]
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    RECORD.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    record()
