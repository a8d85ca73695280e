"""Tables of throughput against batch size, both modes beside each other. Owns and measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from legato.bench.grid import Grid
from legato.bench.records import BatchRecord

_MIB = 2**20
HEADINGS = ("mode", "streams", "talker f/s", "predictor f/s", "codec f/s", "total f/s", "audio s/s", "slot", "peak")


def price(records: Sequence[BatchRecord]) -> dict[int, float]:
    """How many times longer deterministic mode takes than the default, for each batch size that has both."""
    rate = {(record.mode, record.streams): record.total_frames_s for record in records}
    return {
        streams: rate["default", streams] / slow
        for (mode, streams), slow in rate.items()
        if mode == "deterministic" and slow > 0 and ("default", streams) in rate
    }


def batch_tables(records: Sequence[BatchRecord]) -> Iterator[Grid]:
    """One table for each model."""
    for model in dict.fromkeys(record.model for record in records):
        of_model = [record for record in records if record.model == model]
        ordered = sorted(of_model, key=lambda each: (each.streams, each.mode))
        prices = ", ".join(f"{times:.2f} times as long at {streams}" for streams, times in price(of_model).items())
        yield Grid(
            title=f"Throughput against batch size: {model.name}",
            headings=HEADINGS,
            rows=tuple(_row(record) for record in ordered),
            note="Frames for a second of each part's own time; total is all of a turn."
            + (f" Deterministic mode takes {prices} streams." if prices else ""),
        )


def _row(record: BatchRecord) -> tuple[str, ...]:
    rates = (record.talker_frames_s, record.predictor_frames_s, record.codec_frames_s, record.total_frames_s)
    return (
        record.mode,
        str(record.streams),
        *(f"{rate:.1f}" for rate in rates),
        f"{record.audio_s_per_s:.2f}",
        f"{record.slot_bytes / _MIB:.1f} MiB",
        f"{record.peak_bytes / _MIB:.0f} MiB",
    )
