"""Records made by hand, for tests of what is made of records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from legato.bench.facts import Machine, ModelFacts
from legato.bench.records import ALL_STAGES, Asked, Inside, RequestRecord, Sound

MACHINE = Machine("cpu", "a processor", "a processor", 2, 1, "Linux x86_64", "3.11", "2.13", "0.1")
MODEL = ModelFacts("tiny", "custom_voice", 1000, "float32", "float32", "none", 4, 24_000, 1920)
STAGES_MS = tuple(float(number + 1) for number in range(len(ALL_STAGES)))


def asked(number: int = 0, *, concurrency: int = 1, transport: str = "in-process", cold: bool = False) -> Asked:
    return Asked(
        number=number,
        run=0,
        seed=number,
        cold=cold,
        transport=transport,
        loop="closed",
        concurrency=concurrency,
        rate_hz=0.0,
        text_tokens_s=0.0,
        input_characters=10 + number,
        layout="streaming",
        packet_frames=(4,),
        max_frames=0,
        start_ms=0.0,
        slots=4,
        inside=Inside(text_front_end=True, reference_encoding=False, device_copies=False),
    )


def sound(stages_ms: Sequence[float] = STAGES_MS, *, gaps_ms: Sequence[float] = (300.0,), underruns: int = 0) -> Sound:
    """Pieces of 4 frames, the first one at the end of the stages but playout."""
    stages = dict(zip(ALL_STAGES, stages_ms, strict=True))
    arrived = [sum(stages_ms[:-1])]
    for gap in gaps_ms:
        arrived.append(arrived[-1] + gap)
    assert all(earlier <= later for earlier, later in pairwise(arrived))
    return Sound(
        input_tokens=5,
        frames=4 * len(arrived),
        samples=7680 * len(arrived),
        stages_ms=stages,
        unaccounted_ms=0.0,
        first_packet_ms=sum(stages_ms[1:-2]),
        first_sound_ms=sum(stages_ms),
        first_audible_ms=sum(stages_ms) + 40,
        leading_silence_ms=40.0,
        later_text_wait_ms=0.0,
        arrived_ms=tuple(arrived),
        piece_samples=(7680,) * len(arrived),
        underruns=underruns,
        underrun_ms=10.0 * underruns,
        real_time_factor=0.5,
    )


def record(of: Asked | None = None, *, at_s: float = 0.0, sounds: tuple[Sound, ...] | None = None) -> RequestRecord:
    """A request that was served; without a sound, one that was refused."""
    sounds = (sound(),) if sounds is None else sounds
    return RequestRecord(
        machine=MACHINE,
        model=MODEL,
        asked=of or asked(),
        at_s=at_s,
        outcome="eos" if sounds else "refused",
        error_code="" if sounds else "queue_full",
        settled=True,
        batch_rows=1.0,
        peak_bytes=2**20,
        sounds=sounds,
    )
