"""A caller's bad value is refused by a sentence before it is queued, and other streams go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from legato.api import CloneReference, Legato, load
from legato.errors import InputError, LegatoError, SamplingError
from legato.types import FinishReason
from tests.conftest import TinyCheckpoint
from tests.engine.harness import GREEDY

TEXT = "a text of some length"
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def tts(tiny_checkpoint: TinyCheckpoint) -> Iterator[Legato]:
    with load(tiny_checkpoint("tiny-custom-voice"), max_num_seqs=2, max_seq_len=256) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def cloner(tiny_checkpoint: TinyCheckpoint) -> Iterator[Legato]:
    with load(tiny_checkpoint("tiny-base"), max_num_seqs=2, max_seq_len=256) as loaded:
        yield loaded


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "repetition_penalty", "predictor_temperature", "predictor_top_p"]
)
@pytest.mark.parametrize("value", [NAN, INF, -INF, -1.0, 1e300, 10**400, "0.9", None, True, [0.9]])
def test_sampling_numbers(name: str, value: object) -> None:
    with pytest.raises(SamplingError, match=name):
        replace(GREEDY, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["top_k", "predictor_top_k"])
@pytest.mark.parametrize("value", [NAN, INF, -1, 2.5, 5.0, 2**31, 10**30, "50", None, False])
def test_sampling_counts(name: str, value: object) -> None:
    with pytest.raises(SamplingError, match=name):
        replace(GREEDY, **{name: value})  # type: ignore[arg-type]


BAD_REQUESTS: list[tuple[str, object]] = [
    ("seed", 1.5),
    ("seed", NAN),
    ("seed", -1),
    ("seed", 2**64),
    ("seed", 10**400),
    ("seed", "1"),
    ("seed", True),
    ("max_frames", NAN),
    ("max_frames", 2.5),
    ("max_frames", -1),
    ("max_frames", "9"),
    ("packet_frames", ()),
    ("packet_frames", (0,)),
    ("packet_frames", (1.5,)),
    ("packet_frames", (NAN,)),
    ("packet_frames", (10**30,)),
    ("packet_frames", ("4",)),
    ("speed", NAN),
    ("speed", INF),
    ("speed", "1"),
    ("voice", 7),
    ("language", None),
    ("instruct", b"x"),
    ("sampling", {"temperature": 1}),
]


@pytest.mark.parametrize(("name", "value"), BAD_REQUESTS)
def test_values_of_a_request_are_refused_and_other_streams_go_on(tts: Legato, name: str, value: object) -> None:
    other = tts.stream(iter(["Some ", "words."]), voice="ryan", max_frames=6)
    with pytest.raises(InputError) as caught:
        tts.stream(TEXT, **{name: value})  # type: ignore[arg-type]
    assert caught.value.field == name
    assert other.speech().finish_reason is FinishReason.MAX_FRAMES


@pytest.mark.parametrize(
    "samples",
    [
        np.full(48_000, NAN, np.float32),
        np.concatenate([np.ones(30_000, np.float32) * 0.1, np.array([INF], np.float32)]),
        np.zeros((48_000, 2, 2), np.float32),
        np.zeros(0, np.float32),
        np.zeros(48_000, np.complex64),
        np.array(["a"] * 48_000),
    ],
    ids=["nan", "inf", "shape", "empty", "complex", "text"],
)
def test_reference_recordings_are_refused(cloner: Legato, samples: np.ndarray) -> None:
    with pytest.raises(LegatoError):
        cloner.stream(TEXT, clone=CloneReference((samples, 24_000)))  # type: ignore[arg-type]
