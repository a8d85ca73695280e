"""The layout of Table 2 of the Qwen3-TTS report, filled with what was measured here. Owns the published figures.

The report adds the language model's time until its fourth frame and the codec's time of the first packet, at 1, 3 and 6
requests at once. It ran on an accelerator that it does not name, so its figures stand beside ours to show what the
columns mean, and are marked as published, not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from legato.bench.grid import Grid
from legato.bench.summary import Summary, labels

PUBLISHED_FRAMES = 4
SOURCE = "Qwen3-TTS technical report, arXiv 2601.15621, Table 2"


@dataclass(frozen=True, slots=True)
class Published:
    """A row of the report, milliseconds."""

    model: str
    concurrency: int
    lm_ms: int
    codec_ms: int
    first_packet_ms: int
    frame_ms: int
    real_time_factor: float


PUBLISHED = (
    Published("12Hz-0.6B", 1, 93, 4, 97, 23, 0.288),
    Published("12Hz-0.6B", 3, 174, 5, 179, 27, 0.338),
    Published("12Hz-0.6B", 6, 294, 5, 299, 35, 0.434),
    Published("12Hz-1.7B", 1, 97, 4, 101, 25, 0.313),
    Published("12Hz-1.7B", 3, 190, 5, 195, 29, 0.363),
    Published("12Hz-1.7B", 6, 328, 5, 333, 37, 0.463),
)
"""Time of a frame is the report's for the language model plus its for the codec; both are of one 80 ms frame."""

HEADINGS = (
    "",
    "at once",
    "frames",
    "LM to the last of them",
    "codec",
    "first packet",
    "a frame after it",
    "real-time factor",
)


def table2(summaries: Sequence[Summary]) -> Grid:
    """Measured rows, medians, then the published ones. Cold requests are not in it."""
    warm = [each for each in summaries if each.spoken and not each.case.asked.cold and each.case.asked.loop == "closed"]
    names = labels([each.case for each in warm])
    measured = [_measured(name, each) for name, each in zip(names, warm, strict=True)]
    published = [_published(row) for row in PUBLISHED]
    return Grid(
        title="Language model and codec until the first packet",
        headings=HEADINGS,
        rows=tuple(measured + published),
        note=(
            "Milliseconds, medians, from the engine's receipt of the request. The last rows were published elsewhere "
            f"({SOURCE}; its accelerator is not named) and not measured: their packets hold {PUBLISHED_FRAMES} frames."
        ),
        marked=tuple(range(len(measured), len(measured) + len(published))),
    )


def _measured(name: str, each: Summary) -> tuple[str, ...]:
    spent = (each.lm_ms, each.codec_ms, each.first_packet_ms, each.frame_ms)
    return (
        f"{each.case.model.name}, {name}",
        str(each.case.asked.concurrency),
        str(each.case.asked.packet_frames[0]),
        *(f"{value.p50:.1f}" if value.count else "-" for value in spent),
        f"{each.real_time_factor.p50:.3f}",
    )


def _published(row: Published) -> tuple[str, ...]:
    return (
        f"{row.model}, published elsewhere, not measured",
        str(row.concurrency),
        str(PUBLISHED_FRAMES),
        str(row.lm_ms),
        str(row.codec_ms),
        str(row.first_packet_ms),
        str(row.frame_ms),
        f"{row.real_time_factor:.3f}",
    )
