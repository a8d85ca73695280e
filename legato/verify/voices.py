"""Cloned voices: decoding from the saved codec history against decoding the reference again.

Checks the codec by itself, then whole streams. Not applicable to checkpoints that cannot clone; only Base checkpoints
can.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from legato.engine.kv_cache import KVCopy, KVPool
from legato.engine.leases import KVLease
from legato.engine.voice_cache import VoiceCache
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool
from legato.models.voice import ClonedVoice
from legato.types import Frame
from legato.verify.batching import (
    TEXTS,
    Utterance,
    batch_config,
    compare_outcomes,
    compare_with_one_decode,
    run_solo,
    same_shapes_tolerance,
)
from legato.verify.codec import codec_tolerance, compare_samples, decode_in_windows
from legato.verify.compare import (
    CODES,
    NOTHING_COMPARED,
    SAME_BITS,
    Tolerance,
    compare,
    compare_codes,
    failure,
    worst,
)
from legato.verify.harness import DEFAULT_PARTS, EngineParts, SteppedEngine
from legato.verify.results import CheckLine, Kind
from legato.verify.target import Target, equal_windows, random_windows

GROUP = "cloned voice"
TRANSCRIPT = "This is how I sound."
LONG_TRANSCRIPT = "This is how I sound when I am asked to speak a little longer than one short sentence, as I am now."
FRAMES = 24
PATH = "codec history after the reference"


def check_voices(target: Target) -> Iterator[CheckLine]:
    """The snapshot in windows, used twice, encoded again, and in the engine; controls drop or exchange it."""
    kind = target.model.config.kind
    if kind != "base":
        yield CheckLine(
            group=GROUP,
            claim="decode from snapshot = reference decoded again",
            setting="",
            execution=target.codec_execution(PATH),
            comparison=NOTHING_COMPARED,
            tolerance=CODES,
            kind=Kind.NOT_APPLICABLE,
            note=f"this checkpoint ({kind}) cannot clone voices: only Base checkpoints contain the encoders",
        )
        return
    voice, decoder = voice_of(target, target.voices), target.backend.decoder
    codes = target.random_codes(FRAMES, salt=9)
    whole, _ = decoder.forward(
        decoder.initial_history(1), torch.cat((voice.codes[None].to(codes.device), codes), dim=1)
    )
    oracle = whole[:, voice.frames * target.frame_samples :]
    without_reference = decoder.forward(decoder.initial_history(1), codes)[0]
    tolerance = codec_tolerance(target.model.decoder, codes, without_reference)
    lengths = f"{voice.frames} + {FRAMES} frames"

    def line(claim: str, setting: str, got: Tensor, kind: Kind = Kind.CLAIM) -> CheckLine:
        return CheckLine(
            group=GROUP,
            claim=claim,
            setting=setting,
            execution=target.codec_execution(PATH),
            comparison=compare_samples(got, oracle, target.frame_samples, tolerance.limit),
            tolerance=tolerance,
            kind=kind,
        )

    windows = {"windows of 1": equal_windows(FRAMES, 1), "random windows": random_windows(FRAMES, target.seed)}
    for name, sizes in windows.items():
        got = decode_in_windows(decoder, restored(target, snapshot_of(voice)), codes, sizes)
        yield line("decode from snapshot = reference decoded again", f"{lengths}, {name}", got)
    yield used_twice(target, voice)
    yield encoded_again(target, voice)
    yield in_a_stream(target, voice, tolerance)
    yield from check_prefix_cache(target)
    yield line("snapshot dropped", lengths, without_reference, Kind.CONTROL)
    other = voice_of(target, target.voices, salt=1)
    from_other = decoder.forward(snapshot_of(other), codes)[0]
    yield line("snapshot of another recording", lengths, from_other, Kind.CONTROL)


def voice_of(target: Target, store: VoiceCache, *, salt: int = 0) -> ClonedVoice:
    """The voice of the reference recording with a transcript; another `salt` gives another recording."""
    return store.get_or_encode(target.reference(salt=salt), target.front_end.encode_transcript(TRANSCRIPT))


def snapshot_of(voice: ClonedVoice) -> CodecHistory:
    """The codec history after the reference; `voice_of` always passes a transcript, so it exists."""
    assert voice.history is not None
    return voice.history


def restored(target: Target, history: CodecHistory) -> CodecHistory:
    """The snapshot after a round trip through a slot of a poisoned pool."""
    pool = CodecStatePool(target.backend.decoder.initial_history(2))
    row = CodecRows.of([1], target.device)
    pool.restore(row, history)
    return pool.snapshot(row)


def used_twice(target: Target, voice: ClonedVoice) -> CheckLine:
    """Two streams from one snapshot: decoding must not change it."""
    decoder, codes = target.backend.decoder, target.random_codes(4, salt=10)
    first = decode_in_windows(decoder, restored(target, snapshot_of(voice)), codes, [1, 3])
    second = decode_in_windows(decoder, restored(target, snapshot_of(voice)), codes, [1, 3])
    return CheckLine(
        group=GROUP,
        claim="second use of a snapshot = first use",
        setting="1 + 3 frames",
        execution=target.codec_execution(PATH),
        comparison=compare_samples(second, first, target.frame_samples, SAME_BITS.limit),
        tolerance=SAME_BITS,
    )


def encoded_again(target: Target, voice: ClonedVoice) -> CheckLine:
    """The recording encoded by an empty voice cache: the same codes and the same history."""
    model = target.model
    store = VoiceCache(target.backend.decoder, model.encoder, model.speaker_encoder, limit_bytes=2**28)
    again = voice_of(target, store)
    parts = [compare_codes(frames_of(again), frames_of(voice), stage="reference codes")]
    for a, b in zip(snapshot_of(again).tensors(), snapshot_of(voice).tensors(), strict=True):
        parts.append(compare(a.flatten(), b.flatten(), ("value",), stage="codec history", limit=0.0))
    return CheckLine(
        group=GROUP,
        claim="reference encoded again = first encoding",
        setting=f"{voice.frames} frames of reference",
        execution=target.codec_execution("codec encoder"),
        comparison=worst(parts),
        tolerance=SAME_BITS,
    )


def frames_of(voice: ClonedVoice) -> list[Frame]:
    """The reference codes as frames."""
    return [tuple(frame) for frame in voice.codes.tolist()]


def in_a_stream(target: Target, voice: ClonedVoice, tolerance: Tolerance) -> CheckLine:
    """A stream of the engine against one decode of the reference codes and its own codes."""
    request = target.request(600, transcript=TRANSCRIPT)
    outcome = run_solo(target, Utterance(request, TEXTS[0]), 1, True)
    return CheckLine(
        group=GROUP,
        claim="stream of a cloned voice = one decode of reference and codes",
        setting=f"{voice.frames} + {len(outcome.codes)} frames",
        execution=target.engine_execution(f"engine: {PATH}", batch=1),
        comparison=compare_with_one_decode(target, outcome, tolerance.limit, frames_of(voice)),
        tolerance=tolerance,
    )


class ReorderedKVPool(KVPool):
    """Restores cached keys in reversed order of positions."""

    def copy_in(self, lease: KVLease, copy: KVCopy) -> int:
        return super().copy_in(lease, KVCopy(copy.keys.flip(2), copy.values))


def check_prefix_cache(target: Target) -> Iterator[CheckLine]:
    """The second request of a voice, whose prompt prefix comes from the cache, against the same request run first."""
    first, second = (
        Utterance(target.request(610 + index, transcript=LONG_TRANSCRIPT), TEXTS[index]) for index in range(2)
    )
    config = batch_config(target, 1, True)
    solo = SteppedEngine(target, config)
    client = solo.submit(second.request, second.text)
    solo.run()
    oracle, computed = solo.outcome(client), solo.computed(client)["prompt positions"]
    tolerance = same_shapes_tolerance(target, oracle)
    for kind, claim, parts in (
        (Kind.CLAIM, "cached prompt prefix = computed", DEFAULT_PARTS),
        (Kind.CONTROL, "cached prompt prefix in reversed order", EngineParts(kv_pool=ReorderedKVPool)),
    ):
        engine = SteppedEngine(target, config, parts)
        engine.submit(first.request, first.text)
        engine.run()
        client = engine.submit(second.request, second.text)
        engine.run()
        cached = computed - engine.computed(client)["prompt positions"]
        if cached > 0:
            comparison = compare_outcomes(target, [engine.outcome(client)], [oracle], tolerance.limit)
        else:
            comparison = failure("no prompt position came from the cache, so there is nothing to compare")
        yield CheckLine(
            group=GROUP,
            claim=claim,
            setting=f"{cached} of {computed} positions from the cache",
            execution=target.engine_execution("engine: prompt prefix cached by another request", batch=1),
            comparison=comparison,
            tolerance=tolerance,
            kind=kind,
        )
