"""Shared prompt prefixes are computed once: less work, bit-identical output, never the prefix of another voice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from legato.config.engine import EngineConfig
from legato.engine.kv_cache import MIN_PREFIX_POSITIONS, KVCopy, PrefixCache, cacheable_prefix_len
from legato.engine.scheduler import plan_step
from legato.engine.sequence import SequenceState
from legato.errors import InputError
from legato.models.voice import ClonedVoice
from legato.types import PromptRow, TextLayout, TextToken
from tests.engine.harness import WARM, Harness, Received
from tests.engine.test_scheduler import CAPACITY, view
from tests.engine.tiny import tiny_config
from tests.models.tiny_talker import CODEBOOKS, CODES

INSTRUCT: tuple[TextToken, ...] = tuple((9 + n % 20,) for n in range(20))
OTHER: tuple[TextToken, ...] = (*INSTRUCT[:-1], (31,))


def voice(number: int, *, transcript: int = 18) -> ClonedVoice:
    """A synthetic cloned voice: random speaker vector and 24 random reference frames."""
    noise = torch.Generator().manual_seed(number)
    width = tiny_config().talker.stack.hidden_size
    return ClonedVoice(
        key=f"digest {number}",
        speaker_vector=torch.randn(width, generator=noise),
        codes=torch.randint(CODES, (24, CODEBOOKS), generator=noise),
        reference_text=tuple((8 + n % 20,) for n in range(transcript)),
        history=None,
    )


def submit(
    h: Harness,
    seed: int,
    instruct: tuple[TextToken, ...] = (),
    cloned: ClonedVoice | None = None,
    text: str = "some text",
) -> Received:
    _, received = h.submit(text, seed=seed, sampling=WARM, max_frames=5, instruct=instruct, voice=cloned)
    return received


def bits(received: Received) -> bytes:
    assert not received.errors
    return received.samples.tobytes()


def computed(h: Harness, seed: int) -> list[tuple[int, int]]:
    """(start, length) of each prefill slice of a request."""
    return [(start, length) for its, start, length in h.runner.prefilled if its == seed]  # type: ignore[attr-defined]


@pytest.mark.parametrize("layout", list(TextLayout))
@pytest.mark.parametrize("kind", ["instruction", "clone"])
def test_cached_prefix_saves_compute_and_is_bit_identical(kind: str, layout: TextLayout) -> None:
    asked = {"instruct": INSTRUCT} if kind == "instruction" else {"voice": voice(1)}
    received, slices = {}, {}
    for kept in (0, 2**20):
        h = Harness(rows_per_call=1, prefix_bytes=kept)
        for seed, text in enumerate(("first text", "quite another one")):
            _, each = h.submit(text, seed=seed, sampling=WARM, max_frames=5, layout=layout, **asked)
            h.run()
            received[kept, seed], slices[kept, seed] = bits(each), computed(h, seed)
        h.assert_all_slots_free()
    assert received[0, 0] == received[2**20, 0]
    assert received[0, 1] == received[2**20, 1]
    assert slices[0, 1][0] == slices[2**20, 0][0] == (0, slices[0, 1][1][0])
    assert slices[2**20, 1] == slices[0, 1][1:]
    assert slices[0, 1][0][1] >= MIN_PREFIX_POSITIONS


def test_cached_prefix_is_bit_identical_in_any_batch_and_slot() -> None:
    alone: dict[int, bytes] = {}
    voices = {seed: voice(1 + seed % 2) for seed in range(6)}
    for seed, its in voices.items():
        h = Harness(rows_per_call=1, prefix_bytes=0)
        received = submit(h, seed, cloned=its)
        h.run()
        alone[seed] = bits(received)
    h = Harness(rows_per_call=1, streams=3)
    stream, _ = h.submit("x", seed=99, voice=voice(1), sampling=WARM)
    h.step()
    h.cancel(stream)
    together = {seed: submit(h, seed, cloned=its) for seed, its in voices.items()}
    h.run()
    assert {seed: bits(each) for seed, each in together.items()} == alone
    assert len(set(alone.values())) == len(alone)
    h.assert_all_slots_free()


def test_prefixes_of_other_voice_transcript_or_instruction_are_separate() -> None:
    h = Harness(rows_per_call=1)
    requests = [
        ((), voice(1)),
        ((), voice(2)),
        ((), voice(1, transcript=19)),
        (INSTRUCT, None),
        (OTHER, None),
    ]
    for seed, (instruct, cloned) in enumerate(requests):
        submit(h, seed, instruct, cloned)
        h.run()
        assert computed(h, seed)[0][0] == 0


def test_control_prefix_keyed_by_name_is_detected() -> None:
    def second(label: str) -> bytes:
        h = Harness(rows_per_call=1)
        first = voice(1)
        submit(h, 1, cloned=first)
        h.run()
        other = voice(2)
        named = ClonedVoice(label or other.key, other.speaker_vector, other.codes, other.reference_text, other.history)
        received = submit(h, 2, cloned=named)
        h.run()
        return bits(received)

    assert second("") != second(voice(1).key)


def test_prefix_is_never_short_and_never_the_whole_prompt() -> None:
    h = Harness()
    submit(h, 1)
    submit(h, 2, cloned=voice(1, transcript=60))  # the prefix would cover the whole prompt
    h.step()
    plain, covered = (stream.sequences[0] for stream in h.streams)
    assert cacheable_prefix_len(plain.slot.plan) == 0
    assert cacheable_prefix_len(covered.slot.plan) == len(covered.slot.plan.rows) - 1
    h.run()
    assert computed(h, 2)[-1][1] == 1
    h.assert_all_slots_free()


def test_prompt_is_cut_at_its_prefix_and_at_multiples_of_the_budget() -> None:
    def slices(positions: int) -> list[tuple[int, int]]:
        seen = view(1, state=SequenceState.PREFILLING, prompt=100, positions=positions)
        plan = plan_step([replace(seen, cacheable_prefix_len=50)], [], replace(CAPACITY, prefill_positions=30))
        return [(each.start, each.length) for each in plan.prefill]

    assert [slices(start) for start in (0, 30, 50, 80)] == [[(0, 30)], [(30, 20)], [(50, 30)], [(80, 20)]]


def test_prefix_cache_evicts_least_recently_used() -> None:
    def copy() -> KVCopy:
        return KVCopy(torch.zeros(2, 1, 8, 4), torch.zeros(2, 1, 8, 4))

    keys = [("voice", (PromptRow(code=number),)) for number in range(3)]
    store = PrefixCache(2 * copy().bytes)
    store.put(keys[0], copy())
    store.put(keys[1], copy())
    assert store.get(keys[0]) is not None
    store.put(keys[2], copy())
    assert [store.get(key) is not None for key in keys] == [True, False, True]
    assert store.cached_bytes == 2 * copy().bytes == 2 * 2 * 64 * 4
    none = PrefixCache(0)
    none.put(keys[0], copy())
    assert (none.get(keys[0]), none.cached_bytes) == (None, 0)
    with pytest.raises(InputError, match="prefix_cache_bytes"):
        EngineConfig(prefix_cache_bytes=-1)
