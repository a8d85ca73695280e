"""What prompts begin with in common is computed once: less work, the same bits, and never another voice's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from legato.config.engine import EngineConfig
from legato.engine.kv_pool import KVCopy
from legato.engine.prefixes import LEAST_POSITIONS, PrefixStore, shared_positions
from legato.engine.scheduler import plan_turn
from legato.engine.sequence import SequenceState
from legato.errors import InputError
from legato.flow import PromptRow, TextLayout, TextToken
from legato.models.voice import Voice
from tests.engine.harness import WARM, Harness, Heard
from tests.engine.test_scheduler import ROOM, view
from tests.engine.tiny import tiny_config
from tests.models.tiny_talker import CODEBOOKS, CODES

INSTRUCT: tuple[TextToken, ...] = tuple((9 + n % 20,) for n in range(20))
OTHER: tuple[TextToken, ...] = (*INSTRUCT[:-1], (31,))


def voice(number: int, *, transcript: int = 18) -> Voice:
    """A clone made up: noise for a speaker, 24 frames of reference."""
    noise = torch.Generator().manual_seed(number)
    width = tiny_config().talker.stack.hidden_size
    return Voice(
        key=f"digest {number}",
        speaker_vector=torch.randn(width, generator=noise),
        codes=torch.randint(CODES, (24, CODEBOOKS), generator=noise),
        reference_text=tuple((8 + n % 20,) for n in range(transcript)),
        histories=(),
    )


def ask(
    h: Harness, seed: int, instruct: tuple[TextToken, ...] = (), voices: tuple[Voice, ...] = (), text: str = "some text"
) -> Heard:
    _, heard = h.submit(text, seed=seed, sampling=WARM, max_frames=5, instruct=instruct, voices=voices)
    return heard


def bits(heard: Heard) -> bytes:
    assert not heard.errors
    return heard.samples.tobytes()


def computed(h: Harness, seed: int) -> list[tuple[int, int]]:
    """Start and length of the prompt slices of a request."""
    return [(start, length) for its, start, length in h.runner.prefilled if its == seed]  # type: ignore[attr-defined]


@pytest.mark.parametrize("layout", list(TextLayout))
@pytest.mark.parametrize("kind", ["instruction", "clone"])
def test_the_second_request_computes_less_and_says_the_same_to_the_bit(kind: str, layout: TextLayout) -> None:
    asked = {"instruct": INSTRUCT} if kind == "instruction" else {"voices": (voice(1),)}
    heard, slices = {}, {}
    for kept in (0, 2**20):
        h = Harness(rows_per_call=1, prefix_bytes=kept)
        for seed, text in enumerate(("first text", "quite another one")):
            _, each = h.submit(text, seed=seed, sampling=WARM, max_frames=5, layout=layout, **asked)
            h.run()
            heard[kept, seed], slices[kept, seed] = bits(each), computed(h, seed)
        h.assert_balanced()
    assert heard[0, 0] == heard[2**20, 0]
    assert heard[0, 1] == heard[2**20, 1]
    assert slices[0, 1][0] == slices[2**20, 0][0] == (0, slices[0, 1][1][0])  # cut in the same place, kept or not
    assert slices[2**20, 1] == slices[0, 1][1:]
    assert slices[0, 1][0][1] >= LEAST_POSITIONS


def test_it_is_the_same_in_company_in_any_slot_and_after_a_cancel() -> None:
    alone: dict[int, bytes] = {}
    who = {seed: voice(1 + seed % 2) for seed in range(6)}
    for seed, its in who.items():
        h = Harness(rows_per_call=1, prefix_bytes=0)
        heard = ask(h, seed, voices=(its,))
        h.run()
        alone[seed] = bits(heard)
    h = Harness(rows_per_call=1, streams=3)
    stream, _ = h.submit("x", seed=99, voices=(voice(1),), sampling=WARM)
    h.turn()
    h.cancel(stream)
    together = {seed: ask(h, seed, voices=(its,)) for seed, its in who.items()}
    h.run()
    assert {seed: bits(each) for seed, each in together.items()} == alone
    assert len(set(alone.values())) == len(alone)
    h.assert_balanced()


def test_another_voice_transcript_or_instruction_has_a_start_of_its_own() -> None:
    h = Harness(rows_per_call=1)
    requests = [((), (voice(1),)), ((), (voice(2),)), ((), (voice(1, transcript=19),)), (INSTRUCT, ()), (OTHER, ())]
    for seed, (instruct, voices) in enumerate(requests):
        ask(h, seed, instruct, voices)
        h.run()
        assert computed(h, seed)[0][0] == 0


def test_control_a_start_known_by_a_label_would_be_heard() -> None:
    def second(label: str) -> bytes:
        h = Harness(rows_per_call=1)
        first = voice(1)
        ask(h, 1, voices=(first,))
        h.run()
        other = voice(2)
        named = Voice(label or other.key, other.speaker_vector, other.codes, other.reference_text, other.histories)
        heard = ask(h, 2, voices=(named,))
        h.run()
        return bits(heard)

    assert second("") != second(voice(1).key)


def test_few_positions_are_not_cut_off_and_never_the_whole_prompt_is() -> None:
    h = Harness()
    ask(h, 1)
    ask(h, 2, voices=(voice(1, transcript=60),))  # the transcript covers all of the reference, and so the prompt
    h.turn()
    plain, covered = (stream.sequences[0] for stream in h.streams)
    assert shared_positions(plain.prompts[0]) == 0
    assert shared_positions(covered.prompts[0]) == len(covered.prompts[0].rows) - 1
    h.run()
    assert computed(h, 2)[-1][1] == 1
    h.assert_balanced()


def test_a_prompt_is_cut_where_its_shared_positions_end_and_then_at_multiples() -> None:
    def slices(positions: int) -> list[tuple[int, int]]:
        seen = view(1, state=SequenceState.PREFILLING, prompt=100, positions=positions)
        plan = plan_turn([replace(seen, shared_positions=50)], frozenset(), replace(ROOM, prefill_positions=30))
        return [(each.start, each.length) for each in plan.prefill]

    assert [slices(start) for start in (0, 30, 50, 80)] == [[(0, 30)], [(30, 20)], [(50, 30)], [(80, 20)]]


def test_the_store_has_a_limit_in_bytes_and_drops_what_was_used_longest_ago() -> None:
    def copy() -> KVCopy:
        return KVCopy(torch.zeros(2, 1, 8, 4), torch.zeros(2, 1, 8, 4))

    keys = [("voice", (PromptRow(code=number),)) for number in range(3)]
    store = PrefixStore(2 * copy().bytes)
    store.keep(keys[0], copy())
    store.keep(keys[1], copy())
    assert store.find(keys[0])
    store.keep(keys[2], copy())
    assert [bool(store.find(key)) for key in keys] == [True, False, True]
    assert store.kept_bytes == 2 * copy().bytes == 2 * 2 * 64 * 4
    none = PrefixStore(0)
    none.keep(keys[0], copy())
    assert (none.find(keys[0]), none.kept_bytes) == ([], 0)
    with pytest.raises(InputError, match="prefix_cache_bytes"):
        EngineConfig(prefix_cache_bytes=-1)
