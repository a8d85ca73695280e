"""Company, cancel, slot reuse and text in pieces: sound engines pass, and each fault in the engine turns them red."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
import torch

from legato.engine.codec_pool import CodecPool
from legato.engine.leases import CodecLease
from legato.engine.roster import Roster
from legato.engine.stream import Stream
from legato.errors import NonFiniteError
from legato.flow import FinishReason
from legato.models.codec.state import CodecHistory, CodecStatePool
from legato.models.noise import uniforms
from legato.verify import cancel, company, reuse, streamed
from legato.verify.lines import CheckLine, Kind, Verdict, tally
from legato.verify.subject import Subject
from tests.verify.toy import PieceFrontEnd, toy_model, toy_subject


def run(check: Callable[[Subject], Iterable[CheckLine]], subject: Subject | None = None) -> list[CheckLine]:
    with torch.inference_mode():
        return list(check(subject or toy_subject()))


def failed(lines: list[CheckLine]) -> set[str]:
    return {line.claim for line in lines if line.verdict is Verdict.DIFFERENT}


def fails(check: Callable[[Subject], Iterable[CheckLine]], claim: str) -> bool:
    """Whether a claim of a group turns out to be different; nothing is computed beyond the first that does."""
    with torch.inference_mode():
        lines = check(toy_subject())
        return any(line.claim == claim and line.verdict is Verdict.DIFFERENT for line in lines)


@pytest.mark.parametrize(
    ("check", "controls"),
    [
        (company.check_company, 6),
        (cancel.check_cancel, 3),
        (reuse.check_reuse, 2),
        (streamed.check_streamed, 3),
    ],
)
def test_a_sound_engine_passes(check: Callable[[Subject], Iterable[CheckLine]], controls: int) -> None:
    lines = run(check)
    assert [line for line in lines if line.bad] == []
    assert sum(line.kind is Kind.CONTROL for line in lines) == controls
    assert tally(lines).passed


def test_a_codec_stage_that_mixes_up_histories_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CodecPool.gather

    def reversed_rows(pool: CodecPool, leases: Sequence[CodecLease]) -> CodecHistory:
        return right(pool, leases[::-1])

    monkeypatch.setattr(CodecPool, "gather", reversed_rows)
    assert fails(company.check_company, "streamed samples = one decode of the same codes")


def test_noise_that_remembers_what_ran_before_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(10**9))
    monkeypatch.setattr(
        "legato.engine.runner.uniforms",
        lambda seed, sequence, frame, codebooks: uniforms(seed + next(calls), sequence, frame, codebooks),
    )
    assert fails(company.check_company, "codes in company = alone")


def test_a_cancel_that_only_stops_sending_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream stays in the roster, deaf, and goes on."""

    def silenced(roster: Roster, stream: Stream) -> None:
        roster.say_last(stream, FinishReason.CANCELLED)
        stream.closed = False
        stream.sink = cancel._nobody
        stream.intake.end()

    monkeypatch.setattr(Roster, "cancel", silenced)
    assert fails(cancel.check_cancel, "nothing is computed after a cancel")
    assert fails(cancel.check_thread, "frames after a cancel = the other's")


def test_a_slot_that_keeps_its_history_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodecStatePool, "reset", lambda _pool, _rows: None)
    monkeypatch.setattr(CodecStatePool, "poison", lambda _pool, _rows: None)
    assert fails(reuse.check_reuse, "used slot = fresh slot")


def test_a_front_end_whose_tokens_depend_on_the_cut_fails() -> None:
    lines = run(streamed.check_streamed, toy_subject(front_end=PieceFrontEnd()))
    assert failed(lines) == {"tokens of pieces = tokens of the text", "codes and samples of pieces = at once"}


def test_an_engine_whose_streams_fail_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two failures are not two equal results."""

    def refuses(_samples: object, *, first_sample: int) -> None:
        raise NonFiniteError(f"put in at sample {first_sample}")

    monkeypatch.setattr("legato.engine.packets.check_finite", refuses)
    assert fails(company.check_company, "codes in company = alone")


def test_in_half_precision_codes_of_whole_batches_are_measured_and_only_what_is_judged_has_controls() -> None:
    lines = run(company.check_company, toy_subject(toy_model(in_bfloat16=True)))
    default = [line for line in lines if "default" in line.where.path]
    measured = [line.claim for line in default if line.verdict is Verdict.MEASURED]
    assert measured == ["codes in company = alone"]
    assert [line.claim for line in default if line.kind is Kind.CONTROL] == ["codec history of another stream"]
    assert [line for line in lines if line.bad] == []
