"""Codes and samples of tiny checkpoints, and lengths of the embedded voice.

The codes of the embedded voice are recorded in `tests/fixtures/voice/codes.json` (see `tests/test_voice.py`), which
marks codes that another CPU may round differently. Here only results that do not depend on rounding are recorded: the
length of each utterance and its finish reason.

The tiny checkpoints run in PyTorch, without Legato's kernels. Even so, CPUs differ in the last bits (AVX2 and AVX-512),
so a case is not recorded if its codes change when all weights change by a factor of about 1e-5. Samples differ in the
last bits, too: some are recorded, and compared with a tolerance.
"""

from __future__ import annotations

import legato
from tests.frozen.subjects import WEIGHT_NOISE, Subjects, generate

FRAMES = 12
SAMPLE_STEP = 480
"""One of this many samples is recorded."""
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
"""Checkpoint, text, transcript of the reference recording ("": clone from the speaker vector only), seed."""


def take(subjects: Subjects) -> object:
    """The codes of each case, and some of its samples."""
    lines: list[object] = []
    for kind, text, transcript, seed in CASES:
        speech = generate(subjects.folder(kind), text, transcript=transcript, seed=seed, frames=FRAMES)
        some_samples = [round(float(value), 5) for value in speech.samples[::SAMPLE_STEP]]
        case = {"checkpoint": kind, "text": text, "transcript": transcript, "seed": seed}
        lines.append({**case, "codes": speech.codes, "sample_count": len(speech.samples), "samples": some_samples})
    return lines


def rounding_dependent(subjects: Subjects) -> list[str]:
    """The cases whose codes could differ on another CPU."""
    return [
        f"{kind} {seed}"
        for kind, text, transcript, seed in CASES
        if generate(subjects.folder(kind), text, transcript=transcript, seed=seed, frames=FRAMES).codes
        != generate(
            subjects.folder(kind), text, transcript=transcript, seed=seed, frames=FRAMES, weight_noise=WEIGHT_NOISE
        ).codes
    ]


def take_embedded(_subjects: Subjects) -> object:
    """Lengths and finish reasons of the embedded voice, with and without a limit of frames."""
    lines: list[object] = []
    with legato.load("embedded") as tts:
        for voice in tts.voices():
            for seed in (1, 2):
                for frames in (0, FRAMES):
                    speech = tts.say("Good morning.", voice=voice.name, seed=seed, max_frames=frames)
                    case = {"voice": voice.name, "dialect": voice.dialect, "seed": seed, "max_frames": frames}
                    end = {"frames": speech.frames, "finish_reason": speech.finish_reason.value}
                    lines.append({**case, **end, "samples": len(speech.samples), "rate_hz": speech.sample_rate_hz})
    return lines
