"""What some of a stage takes by itself: reading a text, encoding a reference, fetching samples from the device.

These lie inside stages of a request and are not added to them. Each is done alone, in the calling thread, as often as
there are requests. Owns nothing; the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from legato.api import CloneReference, Legato
from legato.bench.device import settle_of
from legato.bench.facts import Machine, ModelFacts
from legato.bench.grid import Grid
from legato.bench.observe import Subject
from legato.bench.records import ENGINE_STAGES, REQUEST
from legato.bench.summary import spread
from legato.bench.workload import Utterance, Workload
from legato.engine.frontend import FrontEnd, front_end_of
from legato.engine.voices import VoiceStore

INPUT_WAIT, CODEC = ENGINE_STAGES[0], ENGINE_STAGES[-1]


@dataclass(frozen=True, slots=True)
class AsideRecord:
    """`what` was done `times_ms` by itself; in a request it lies inside the stage `inside`."""

    machine: Machine
    model: ModelFacts
    what: str
    inside: str
    times_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.times_ms:
            raise ValueError("times_ms is empty, and what was not done takes no time")


def measure_asides(
    subject: Subject, workload: Workload, requests: int, clock: Callable[[], float]
) -> Iterator[AsideRecord]:
    """One record for each that the model has: all read text, Base models encode, CUDA copies."""
    utterances = [workload.utterance(number) for number in range(requests)]
    tts, front_end = subject.tts, front_end_of(subject.tts.model)

    def timed(what: str, inside: str, work: Callable[[Utterance], None]) -> AsideRecord:
        times_ms = []
        for utterance in utterances:
            began_s = clock()
            work(utterance)
            times_ms.append(round(1000 * (clock() - began_s), 3))
        return AsideRecord(subject.machine, subject.facts, what, inside, tuple(times_ms))

    yield timed("text front end, the whole text", INPUT_WAIT, lambda each: _read(tts, front_end, each))
    if workload.reference:
        yield timed("reference encoding, once a voice", REQUEST, lambda each: _encode(tts, front_end, each))
    if subject.machine.device.startswith("cuda"):
        yield timed("copy of the first packet to the host", CODEC, _copy_of(subject, workload.packet_frames[0]))


def _read(tts: Legato, front_end: FrontEnd, utterance: Utterance) -> None:
    track = front_end.track(next(iter(tts.model.config.talker.speakers), ""))
    track.append(utterance.text)
    track.end()


def _encode(tts: Legato, front_end: FrontEnd, utterance: Utterance) -> None:
    """Into a store of its own, which knows no voice yet."""
    model = tts.model
    reference = tts.reference(CloneReference(utterance.reference, utterance.transcript))
    tokens = front_end.reference(utterance.transcript) if utterance.transcript else ()
    VoiceStore(model.decoder, model.encoder, model.speaker_encoder, limit_bytes=1).voice(reference.samples, tokens)


def _copy_of(subject: Subject, frames: int) -> Callable[[Utterance], None]:
    settle = settle_of(subject.tts.model)
    samples = torch.zeros(frames * subject.facts.frame_samples, device=subject.machine.device)

    def copy(_: Utterance) -> None:
        settle()
        samples.cpu()

    return copy


def aside_table(records: list[AsideRecord]) -> Grid:
    """One row for each."""
    rows = []
    for record in records:
        got = spread(record.times_ms)
        figures = (f"{each:.2f}" for each in (got.mean, got.p50, got.p90, got.most))
        rows.append((record.model.name, record.what, record.inside, str(got.count), *figures))
    return Grid(
        title="What lies inside a stage, done by itself",
        headings=("", "what", "inside", "times", "mean ms", "p50", "p90", "most"),
        rows=tuple(rows),
        note="Not to be added to the stages.",
        left=3,
    )
