"""A malformed row of a batch fails its own stream alone; a fault of the device ends all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from legato.engine.engine import Engine
from legato.engine.sequence import Sequence as TalkerSequence
from legato.errors import GenerationError, LegatoError
from legato.models.voice import ClonedVoice
from legato.types import FinishReason
from tests.engine.clients import MakeEngine, read, request, speak
from tests.engine.harness import WARM, Harness

TEXT = "a text of some length"
NAN = float("nan")


def voice(**changes: object) -> ClonedVoice:
    """A cloned voice of the tiny talker, with some fields replaced by values that do not fit."""
    fields = {"key": "k", "speaker_vector": torch.zeros(32), "codes": torch.empty(0, 0, dtype=torch.long)}
    return ClonedVoice(**{**fields, "reference_text": (), "history": None, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        {"speaker_vector": torch.zeros(5)},
        {"speaker_vector": torch.full((32,), NAN)},
        {"codes": torch.full((6, 4), 10**6), "reference_text": ((9,),) * 4},
        {"codes": torch.zeros(6, 1, dtype=torch.long), "reference_text": ((9,),) * 4},
        {"codes": torch.full((6, 4), -3), "reference_text": ((9,),) * 4},
        {"reference_text": ((10**9,),) * 4, "codes": torch.zeros(6, 4, dtype=torch.long)},
    ],
    ids=["short vector", "nan vector", "large codes", "few codebooks", "negative codes", "text ids"],
)
def test_malformed_clone_prompt_fails_only_its_own_stream(bad: dict[str, object]) -> None:
    h = Harness()
    _, failing = h.submit(TEXT, seed=1, max_frames=9, voice=voice(**bad))
    _, other = h.submit(TEXT, seed=2, max_frames=9)
    h.run()
    assert len(failing.errors) == 1
    assert other.reason is FinishReason.MAX_FRAMES
    h.assert_all_slots_free()


@pytest.mark.parametrize("token", [(10**9,), (-1,), (), (1, 2)])
def test_text_token_outside_the_vocabulary_fails_only_its_own_stream(token: tuple[int, ...]) -> None:
    """In the prompt, and fed with a later frame."""
    for index in (0, 9):
        h = Harness()
        stream, failing = h.submit(TEXT, seed=1, max_frames=15)
        _, other = h.submit(TEXT, seed=2, max_frames=15)
        h.core._apply_commands(h._take_pending())
        h.core._process_text()
        h.streams[stream].sequences[0].tokenizer.tokens[index] = token  # type: ignore[index]
        h.run()
        (error,) = failing.errors
        assert isinstance(error, LegatoError)
        assert "vocabulary" in str(error)
        assert other.reason is FinishReason.MAX_FRAMES
        h.assert_all_slots_free()


@pytest.mark.parametrize("call", ["_prefill", "_step", "_sample_first_codes", "_predict_frames"])
def test_row_that_raises_in_a_batch_fails_alone_and_the_others_are_unchanged(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call raises before it computes, as torch does when it builds the inputs of a batch."""

    def run(*, poisoned: bool) -> Harness:
        h = Harness()
        original: Callable[[Sequence[object]], object] = getattr(h.runner, call)

        def checked(rows: Sequence[object]) -> object:
            for row in rows:
                sequence = row if isinstance(row, TalkerSequence) else row[0]  # type: ignore[index]
                if sequence.seed == 1 and (call == "_prefill" or sequence.frames >= 3):
                    raise IndexError("one row is malformed")
            return original(rows)

        if poisoned:
            monkeypatch.setattr(h.runner, call, checked)
        received = [h.submit(TEXT, seed=seed, max_frames=9, sampling=WARM)[1] for seed in range(3)]
        h.run()
        if poisoned:
            (error,) = received[1].errors
            assert isinstance(error, GenerationError)
            assert "IndexError" in str(error)
        assert not received[0].errors
        assert not received[2].errors
        h.assert_all_slots_free()
        return h

    clean, poisoned = run(poisoned=False), run(poisoned=True)
    for seed in (0, 2):
        assert poisoned.codes(seed) == clean.codes(seed)


def test_fault_of_the_device_still_ends_all_streams(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row fails alone, too: the rows are not the cause."""
    engine: Engine = make_engine()

    def broken(_sequences: Sequence[TalkerSequence]) -> object:
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(engine.runner, "_predict_frames", broken)
    streams = [speak(engine.submit(request(seed))) for seed in range(3)]
    for stream in streams:
        with pytest.raises(LegatoError):
            read(stream)
    assert engine.health().failed_steps >= 1


def test_failed_row_of_the_only_stream_spares_those_that_wait(make_engine: MakeEngine) -> None:
    engine: Engine = make_engine(streams=1)
    original = engine.runner._predict_frames

    def poisonous(sequences: Sequence[TalkerSequence]) -> object:
        if any(each.seed == 1 for each in sequences):
            raise IndexError("one row is malformed")
        return original(sequences)

    engine.runner._predict_frames = poisonous  # type: ignore[method-assign,assignment]
    bad, good = (speak(engine.submit(request(seed))) for seed in (1, 2))
    with pytest.raises(GenerationError):
        read(bad)
    assert read(good)
    assert engine.health().unhealthy_reason(10.0) is None
