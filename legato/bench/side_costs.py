"""Time of single operations within a stage: text front end, reference encoding, copying samples to the host.

Each operation is measured separately, in the calling thread, once per request. In a request these times are part of a
stage, so they are reported separately and not added to the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from legato.api import CloneReference, Legato
from legato.bench.environment import synchronize_fn
from legato.bench.measure import Target
from legato.bench.records import ENGINE_STAGES, REQUEST, SideCostRecord
from legato.bench.rendering import ReportTable
from legato.bench.summary import distribution
from legato.bench.workload import Utterance, Workload
from legato.engine.frontend import FrontEnd, create_front_end
from legato.engine.voice_cache import VoiceCache

INPUT_WAIT, CODEC = ENGINE_STAGES[0], ENGINE_STAGES[-1]


def measure_side_costs(
    target: Target, workload: Workload, requests: int, clock: Callable[[], float]
) -> Iterator[SideCostRecord]:
    """Yield one record per operation: reading text; encoding for Base models; copying on CUDA."""
    utterances = [workload.utterance(number) for number in range(requests)]
    tts, front_end = target.tts, create_front_end(target.tts.model)

    def timed(operation: str, stage: str, run: Callable[[Utterance], None]) -> SideCostRecord:
        times_ms = []
        for utterance in utterances:
            started_s = clock()
            run(utterance)
            times_ms.append(round(1000 * (clock() - started_s), 3))
        return SideCostRecord(
            machine=target.machine,
            model=target.model_info,
            operation=operation,
            stage=stage,
            times_ms=tuple(times_ms),
        )

    yield timed("text front end, whole text", INPUT_WAIT, lambda each: _read_text(tts, front_end, each))
    if workload.reference:
        yield timed("reference encoding, once per voice", REQUEST, lambda each: _encode_reference(tts, front_end, each))
    if target.machine.device.startswith("cuda"):
        yield timed(
            "copy of the first packet to the host", CODEC, _device_copy(target, (workload.packet_frames or (1,))[0])
        )


def _read_text(tts: Legato, front_end: FrontEnd, utterance: Utterance) -> None:
    tokenizer = front_end.new_tokenizer(next(iter(tts.model.config.talker.speakers), ""))
    tokenizer.append(utterance.text)
    tokenizer.end()


def _encode_reference(tts: Legato, front_end: FrontEnd, utterance: Utterance) -> None:
    """Encode with a new, empty cache."""
    model = tts.model
    reference = tts.reference(CloneReference(utterance.reference, utterance.transcript))
    tokens = front_end.encode_transcript(utterance.transcript) if utterance.transcript else ()
    store = VoiceCache(tts.backend.decoder, model.encoder, model.speaker_encoder, limit_bytes=1)
    store.get_or_encode(reference.samples, tokens)


def _device_copy(target: Target, frames: int) -> Callable[[Utterance], None]:
    synchronize = synchronize_fn(target.tts.model)
    samples = torch.zeros(frames * target.model_info.frame_samples, device=target.machine.device)

    def copy(_: Utterance) -> None:
        synchronize()
        samples.cpu()

    return copy


def side_cost_table(records: list[SideCostRecord]) -> ReportTable:
    """One row per record."""
    rows = []
    for record in records:
        times = distribution(record.times_ms)
        figures = (f"{each:.2f}" for each in (times.mean, times.p50, times.p90, times.maximum))
        rows.append((record.model.name, record.operation, record.stage, str(times.count), *figures))
    return ReportTable(
        title="Operations inside a stage, measured separately",
        headings=("", "operation", "stage", "count", "mean ms", "p50", "p90", "max"),
        rows=tuple(rows),
        note="These times are included in the stages.",
        text_columns=3,
    )
