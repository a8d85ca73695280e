"""A cloned voice's snapshot of the codec against decoding its reference again, alone and in a whole stream.

Only Base checkpoints clone; others have nothing to check here, and say so. Owns nothing beyond a call.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from legato.engine.kv_pool import KVCopy, KVPool
from legato.engine.leases import KVLease
from legato.engine.voices import VoiceStore
from legato.models.codec.state import CodecHistory, CodecRows, CodecStatePool
from legato.models.voice import Voice
from legato.verify.codec import codec_tolerance, compare_samples, decode_in
from legato.verify.company import TEXTS, Ask, against_one_decode, alike, compare_outcomes, config_of, solo
from legato.verify.compare import Comparison, compare, compare_codes, failure, worst
from legato.verify.lines import CheckLine, Kind
from legato.verify.partitions import equal_windows, random_windows
from legato.verify.rig import SOUND, Parts, Rig
from legato.verify.subject import Subject
from legato.verify.tolerance import CODES, SAME_BITS, Tolerance

GROUP = "cloned voice"
TRANSCRIPT = "This is how I sound."
LONG_TRANSCRIPT = "This is how I sound when I am asked to speak a little longer than one short sentence, as I am now."
FRAMES = 24
PATH = "codec history as it was after the reference"


def check_voices(subject: Subject) -> Iterator[CheckLine]:
    """The snapshot in windows, twice, encoded again, and through the engine; then without it and with a stranger's."""
    kind = subject.model.config.kind
    where = subject.at_codec(PATH)
    if kind != "base":
        reason = f"this checkpoint ({kind}) clones no voice: only Base checkpoints have the encoders for it"
        nothing = Comparison(0.0, 0.0, 0)
        yield CheckLine(
            GROUP, "snapshot = reference decoded again", "", where, nothing, CODES, Kind.NOT_APPLICABLE, reason
        )
        return
    voice, decoder = voice_of(subject, subject.voices), subject.model.decoder
    codes = subject.codes(FRAMES, salt=9)
    whole, _ = decoder.forward(decoder.fresh(1), torch.cat((voice.codes[None].to(codes.device), codes), dim=1))
    oracle = whole[:, voice.frames * subject.frame_samples :]
    tolerance = codec_tolerance(decoder, codes, decoder.forward(decoder.fresh(1), codes)[0])

    def line(claim: str, setting: str, got: Tensor, kind: Kind = Kind.CLAIM, limit: Tolerance = tolerance) -> CheckLine:
        found = compare_samples(got, oracle, subject.frame_samples, limit.limit)
        return CheckLine(GROUP, claim, setting, where, found, limit, kind)

    for name, sizes in {
        "windows of 1": equal_windows(FRAMES, 1),
        "random windows": random_windows(FRAMES, subject.seed),
    }.items():
        got = decode_in(decoder, in_a_slot(subject, voice.histories[0]), codes, sizes)
        yield line("from the snapshot = reference decoded again", f"{voice.frames} + {FRAMES} frames, {name}", got)
    yield same_again(subject, voice)
    yield encoded_again(subject, voice)
    yield in_a_stream(subject, voice, tolerance)
    yield from kept_start(subject)
    setting = f"{voice.frames} + {FRAMES} frames"
    stranger = voice_of(subject, subject.voices, salt=1)
    yield line("snapshot dropped", setting, decoder.forward(decoder.fresh(1), codes)[0], Kind.CONTROL)
    other = decoder.forward(stranger.histories[0], codes)[0]
    yield line("snapshot of another recording", setting, other, Kind.CONTROL)


def voice_of(subject: Subject, store: VoiceStore, *, salt: int = 0) -> Voice:
    """The voice of the fixed recording, or with a `salt` of another one, with a transcript."""
    return store.voice(subject.reference(salt=salt), subject.front_end.reference(TRANSCRIPT))


def in_a_slot(subject: Subject, history: CodecHistory) -> CodecHistory:
    """The snapshot restored into a slot of a poisoned pool and read back."""
    pool = CodecStatePool(subject.model.decoder.fresh(2))
    row = CodecRows.of([1], subject.device)
    pool.restore(row, history)
    return pool.snapshot(row)


def same_again(subject: Subject, voice: Voice) -> CheckLine:
    """Two streams from one snapshot: using it does not change it."""
    decoder, codes = subject.model.decoder, subject.codes(4, salt=10)
    first = decode_in(decoder, in_a_slot(subject, voice.histories[0]), codes, [1, 3])
    second = decode_in(decoder, in_a_slot(subject, voice.histories[0]), codes, [1, 3])
    found = compare_samples(second, first, subject.frame_samples, SAME_BITS.limit)
    return CheckLine(GROUP, "a snapshot used twice", "1 + 3 frames", subject.at_codec(PATH), found, SAME_BITS)


def encoded_again(subject: Subject, voice: Voice) -> CheckLine:
    """The recording encoded by a store that has not heard it: the same codes, the same history."""
    model = subject.model
    store = VoiceStore(model.decoder, model.encoder, model.speaker_encoder, limit_bytes=2**28)
    again = voice_of(subject, store)
    frames = [[tuple(frame) for frame in each.codes.tolist()] for each in (again, voice)]
    parts = [compare_codes(*frames, stage="reference codes")]
    for mine, its in zip(again.histories[0].tensors(), voice.histories[0].tensors(), strict=True):
        parts.append(compare(mine.flatten(), its.flatten(), ("value",), stage="codec history", limit=0.0))
    setting = f"{voice.frames} frames of reference"
    return CheckLine(GROUP, "encoded again", setting, subject.at_codec("codec encoder"), worst(parts), SAME_BITS)


def in_a_stream(subject: Subject, voice: Voice, tolerance: Tolerance) -> CheckLine:
    """A stream of the engine against one decode of the reference's codes and its own."""
    request = subject.request(600, transcript=TRANSCRIPT)
    spoken = solo(subject, Ask(request, TEXTS[0]), 1, True)
    reference = [tuple(frame) for frame in voice.codes.tolist()]
    found = against_one_decode(subject, spoken, tolerance.limit, reference)
    where = subject.at_engine(f"engine: {PATH}", batch=1)
    setting = f"{voice.frames} + {len(spoken.codes)} frames"
    return CheckLine(GROUP, "a clone's stream = reference and codes in one decode", setting, where, found, tolerance)


class OtherStart(KVPool):
    """The control's: the kept positions come back in another order."""

    def copy_in(self, lease: KVLease, copy: KVCopy) -> int:
        return super().copy_in(lease, KVCopy(copy.keys.flip(2), copy.values))


def kept_start(subject: Subject) -> Iterator[CheckLine]:
    """The second request of a voice, whose first talker positions are copied, against itself as the first."""
    first, second = (Ask(subject.request(610 + at, transcript=LONG_TRANSCRIPT), TEXTS[at]) for at in range(2))
    config = config_of(subject, 1, True)
    alone = Rig(subject, config)
    client = alone.submit(second.request, second.text)
    alone.run()
    outcome, computed = alone.outcome(client), alone.computed(client)["prompt positions"]
    tolerance = alike(subject, outcome)
    where = subject.at_engine("engine: talker positions kept from another request", batch=1)
    for kind, claim, parts in (
        (Kind.CLAIM, "a kept start of a prompt = computed", SOUND),
        (Kind.CONTROL, "a kept start in another order", Parts(kv_pool=OtherStart)),
    ):
        rig = Rig(subject, config, parts)
        rig.submit(first.request, first.text)
        rig.run()
        client = rig.submit(second.request, second.text)
        rig.run()
        fewer = computed - rig.computed(client)["prompt positions"]
        found = compare_outcomes(subject, [rig.outcome(client)], [outcome], tolerance.limit)
        if fewer <= 0:
            found = failure("nothing was kept, so that the comparison would say nothing")
        yield CheckLine(GROUP, claim, f"{fewer} of {computed} positions kept", where, found, tolerance, kind)
