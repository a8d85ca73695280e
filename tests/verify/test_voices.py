"""The checks of cloned voices on a tiny Base checkpoint: correct snapshots pass, stale or lost ones fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from legato.backends.select import load_backend
from legato.engine.codec_state import CodecPool
from legato.engine.kv_cache import KVCopy, KVPool, PrefixCache
from legato.engine.leases import CodecLease, KVLease
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool
from legato.types import StreamId
from legato.verify import voices
from legato.verify.results import CheckLine, Kind, Verdict, tally
from legato.verify.target import Target
from tests.conftest import TinyCheckpoint
from tests.verify.toy import DEPTH


@pytest.fixture(scope="module")
def target(tiny_checkpoint: TinyCheckpoint) -> Target:
    """A checkpoint that can clone voices."""
    depth = replace(DEPTH, speech_frames=3)
    return Target.of(load_backend(tiny_checkpoint("tiny-base"), keep_reference=True), depth, seed=0)


def run(target: Target) -> list[CheckLine]:
    with torch.inference_mode():
        return list(voices.check_voices(target))


def failed(lines: list[CheckLine]) -> set[str]:
    return {line.claim for line in lines if line.verdict is Verdict.DIFFERENT}


def test_correct_snapshot_passes_and_all_controls_are_caught(target: Target) -> None:
    lines = run(target)
    assert [line for line in lines if line.bad] == []
    assert sum(line.kind is Kind.CONTROL for line in lines) == 3
    assert tally(lines).passed


def test_missing_or_wrong_prefix_cache_fails(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = "cached prompt prefix = computed"
    with monkeypatch.context() as patch:
        patch.setattr(PrefixCache, "get", lambda _store, _key: None)
        assert claim in failed(run(target))
    original = KVPool.copy_out

    def zero_values(pool: KVPool, lease: KVLease, positions: int) -> KVCopy:
        copy = original(pool, lease, positions)
        return KVCopy(copy.keys, torch.zeros_like(copy.values))

    monkeypatch.setattr(KVPool, "copy_out", zero_values)
    assert claim in failed(run(target))


def test_slot_that_ignores_the_snapshot_fails(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def starts_afresh(pool: CodecStatePool, row: CodecRows, _snapshot: CodecHistory) -> None:
        pool.reset(row)

    monkeypatch.setattr(CodecStatePool, "restore", starts_afresh)
    assert "decode from snapshot = reference decoded again" in failed(run(target))


def test_engine_that_drops_the_snapshot_fails(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    original = CodecPool.acquire

    def without_history(pool: CodecPool, stream: StreamId, _start: CodecHistory | None = None) -> CodecLease:
        return original(pool, stream)

    monkeypatch.setattr(CodecPool, "acquire", without_history)
    assert failed(run(target)) == {"stream of a cloned voice = one decode of reference and codes"}
