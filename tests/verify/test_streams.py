"""Batching, cancel, slot reuse and incremental text: a correct engine passes, each injected fault fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
import torch

from legato.engine.codec_state import CodecPool
from legato.engine.leases import CodecLease
from legato.engine.registry import StreamRegistry
from legato.engine.stream import Stream
from legato.errors import NonFiniteError
from legato.models.codec.state import CodecHistory, CodecStatePool
from legato.models.noise import uniforms
from legato.types import FinishReason
from legato.verify import batching, cancel, incremental_text
from legato.verify.results import CheckLine, Kind, Verdict, tally
from legato.verify.target import Target
from tests.verify.toy import PieceFrontEnd, toy_model, toy_target


def run(check: Callable[[Target], Iterable[CheckLine]], target: Target | None = None) -> list[CheckLine]:
    with torch.inference_mode():
        return list(check(target or toy_target()))


def failed(lines: list[CheckLine]) -> set[str]:
    return {line.claim for line in lines if line.verdict is Verdict.DIFFERENT}


def fails(check: Callable[[Target], Iterable[CheckLine]], claim: str) -> bool:
    """True if the claim fails; stops at the first failure."""
    with torch.inference_mode():
        lines = check(toy_target())
        return any(line.claim == claim and line.verdict is Verdict.DIFFERENT for line in lines)


@pytest.mark.parametrize(
    ("check", "controls"),
    [
        (batching.check_batching, 6),
        (cancel.check_cancel, 3),
        (cancel.check_reuse, 2),
        (incremental_text.check_incremental_text, 3),
    ],
)
def test_correct_engine_passes(check: Callable[[Target], Iterable[CheckLine]], controls: int) -> None:
    lines = run(check)
    assert [line for line in lines if line.bad] == []
    assert sum(line.kind is Kind.CONTROL for line in lines) == controls
    assert tally(lines).passed


def test_codec_runner_with_swapped_histories_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    original = CodecPool.gather

    def reversed_rows(pool: CodecPool, leases: Sequence[CodecLease]) -> CodecHistory:
        return original(pool, leases[::-1])

    monkeypatch.setattr(CodecPool, "gather", reversed_rows)
    assert fails(batching.check_batching, "streamed samples = one decode of the same codes")


def test_noise_that_depends_on_earlier_calls_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(10**9))
    monkeypatch.setattr(
        "legato.engine.model_runner.uniforms",
        lambda seed, sequence, frame, codebooks: uniforms(seed + next(calls), sequence, frame, codebooks),
    )
    assert fails(batching.check_batching, "codes of batched streams = solo")


def test_cancel_that_only_stops_output_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream stays in the registry and continues without output."""

    def stop_output(registry: StreamRegistry, stream: Stream) -> None:
        registry.deliver_last(stream, FinishReason.CANCELLED)
        stream.closed = False
        stream.on_event = cancel._discard
        stream.intake.end()

    monkeypatch.setattr(StreamRegistry, "cancel", stop_output)
    assert fails(cancel.check_cancel, "no compute after a cancel")
    assert fails(cancel.check_thread, "frames after a cancel = frames of the other request")


def test_slot_that_keeps_its_history_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodecStatePool, "reset", lambda _pool, _rows: None)
    monkeypatch.setattr(CodecStatePool, "poison", lambda _pool, _rows: None)
    assert fails(cancel.check_reuse, "used slot = fresh slot")


def test_front_end_whose_tokens_depend_on_the_split_fails() -> None:
    lines = run(incremental_text.check_incremental_text, toy_target(front_end=PieceFrontEnd()))
    assert failed(lines) == {"tokens of pieces = tokens of the text", "codes and samples of pieces = at once"}


def test_engine_with_failing_streams_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two failed streams are not equal results."""

    def reject(_samples: object, *, first_sample: int) -> None:
        raise NonFiniteError(f"injected at sample {first_sample}")

    monkeypatch.setattr("legato.engine.output.check_finite", reject)
    assert fails(batching.check_batching, "codes of batched streams = solo")


def test_half_precision_codes_of_batches_are_measured_only() -> None:
    lines = run(batching.check_batching, toy_target(toy_model(in_bfloat16=True)))
    default = [line for line in lines if "default" in line.execution.path]
    measured = [line.claim for line in default if line.verdict is Verdict.MEASURED]
    assert measured == ["codes of batched streams = solo"]
    assert [line.claim for line in default if line.kind is Kind.CONTROL] == ["codec history of another stream"]
    assert [line for line in lines if line.bad] == []
