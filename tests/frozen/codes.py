"""Codes and samples of tiny checkpoints, and lengths of the embedded voice.

The codes of the embedded voice are recorded in `tests/fixtures/voice/codes.json` (see `tests/test_voice.py`), with the
draws that another CPU may round differently. They are not recorded again here: only what does not depend on rounding
is, which is the length of an utterance and why it ended.

The codes of the tiny checkpoints are drawn without compiled kernels. Kernels of two CPUs still differ in the last bits
(AVX2 and AVX-512), so recording refuses a case whose codes change when all weights change by a factor of 1e-5.
Samples differ by the same bits: some are recorded, and compared with a tolerance.
"""

from __future__ import annotations

import legato
from tests.frozen.subjects import NUDGE, Subjects, drawn

FRAMES = 12
SAMPLE_STEP = 480
CASES: tuple[tuple[str, str, str, int], ...] = (
    ("tiny-custom-voice", "Good morning, and welcome.", "", 1),
    ("tiny-custom-voice", "Good morning, and welcome.", "", 2),
    ("tiny-custom-voice-wide", "Good morning, and welcome.", "", 3),
    ("tiny-base", "Good morning, and welcome.", "", 1),
    ("tiny-base", "Good morning, and welcome.", "Said in the recording.", 1),
    ("tiny-base-wide", "Good morning, and welcome.", "Said in the recording.", 1),
    ("tiny-voice-design", "Good morning, and welcome.", "", 2),
    ("tiny-embedded", "It was 98.6°F at 9 a.m.", "", 1),
)
"""Checkpoint, text, transcript of the recording to clone ("": speaker vector alone), seed."""


def take(subjects: Subjects) -> object:
    """Codes of each case, and some of its samples."""
    lines: list[object] = []
    for kind, text, transcript, seed in CASES:
        said = drawn(subjects.folder(kind), text, transcript=transcript, seed=seed, frames=FRAMES)
        sketch = [round(float(value), 5) for value in said.samples[::SAMPLE_STEP]]
        case = {"checkpoint": kind, "text": text, "transcript": transcript, "seed": seed}
        lines.append({**case, "codes": said.codes, "sample_count": len(said.samples), "samples": sketch})
    return lines


def unsafe(subjects: Subjects) -> list[str]:
    """The cases whose codes are too close to others to be recorded."""
    return [
        f"{kind} {seed}"
        for kind, text, transcript, seed in CASES
        if drawn(subjects.folder(kind), text, transcript=transcript, seed=seed, frames=FRAMES).codes
        != drawn(subjects.folder(kind), text, transcript=transcript, seed=seed, frames=FRAMES, nudge=NUDGE).codes
    ]


def take_embedded(_subjects: Subjects) -> object:
    """The embedded voice through the Python API: lengths and ends, whole and cut."""
    lines: list[object] = []
    with legato.load("embedded") as tts:
        for voice in tts.voices():
            for seed in (1, 2):
                for frames in (0, FRAMES):
                    said = tts.say("Good morning.", voice=voice.name, seed=seed, max_frames=frames)
                    case = {"voice": voice.name, "dialect": voice.dialect, "seed": seed, "max_frames": frames}
                    end = {"frames": said.frames, "finish_reason": said.finish_reason.value}
                    lines.append({**case, **end, "samples": len(said.samples), "rate_hz": said.sample_rate_hz})
    return lines
