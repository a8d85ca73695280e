"""The cloned voice's checks on a tiny Base checkpoint: sound snapshots pass, stale or lost ones turn them red."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from legato.engine.codec_pool import CodecPool
from legato.engine.kv_pool import KVCopy, KVPool
from legato.engine.leases import CodecLease, KVLease
from legato.engine.prefixes import PrefixStore
from legato.flow import StreamId
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool
from legato.models.load import load_model
from legato.verify import voices
from legato.verify.lines import CheckLine, Kind, Verdict, tally
from legato.verify.subject import Subject
from tests.conftest import TinyCheckpoint
from tests.verify.toy import DEPTH


@pytest.fixture(scope="module")
def subject(tiny_checkpoint: TinyCheckpoint) -> Subject:
    """A model that clones."""
    depth = replace(DEPTH, speech_frames=3)
    return Subject.of(load_model(tiny_checkpoint("tiny-base")), depth, seed=0)


def run(subject: Subject) -> list[CheckLine]:
    with torch.inference_mode():
        return list(voices.check_voices(subject))


def failed(lines: list[CheckLine]) -> set[str]:
    return {line.claim for line in lines if line.verdict is Verdict.DIFFERENT}


def test_a_sound_snapshot_passes_and_all_controls_are_caught(subject: Subject) -> None:
    lines = run(subject)
    assert [line for line in lines if line.bad] == []
    assert sum(line.kind is Kind.CONTROL for line in lines) == 3
    assert tally(lines).passed


def test_an_engine_that_keeps_no_start_or_a_wrong_one_fails(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = "a kept start of a prompt = computed"
    with monkeypatch.context() as patch:
        patch.setattr(PrefixStore, "find", lambda _store, _key: [])
        assert claim in failed(run(subject))
    right = KVPool.copy_out

    def never_written(pool: KVPool, lease: KVLease, positions: int) -> KVCopy:
        copy = right(pool, lease, positions)
        return KVCopy(copy.keys, torch.zeros_like(copy.values))

    monkeypatch.setattr(KVPool, "copy_out", never_written)
    assert claim in failed(run(subject))


def test_a_slot_that_does_not_take_the_snapshot_fails(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def starts_afresh(pool: CodecStatePool, row: CodecRows, _snapshot: CodecHistory) -> None:
        pool.reset(row)

    monkeypatch.setattr(CodecStatePool, "restore", starts_afresh)
    assert "from the snapshot = reference decoded again" in failed(run(subject))


def test_an_engine_that_drops_the_snapshot_fails(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    right = CodecPool.acquire

    def forgets(pool: CodecPool, stream: StreamId, _start: Sequence[CodecHistory]) -> CodecLease:
        return right(pool, stream, ())

    monkeypatch.setattr(CodecPool, "acquire", forgets)
    assert failed(run(subject)) == {"a clone's stream = reference and codes in one decode"}
