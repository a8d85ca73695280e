"""Rows of a benchmark as a table and as JSON, with the setting that every figure needs. Owns and measures nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Setting:
    """What the figures depend on besides the batch."""

    model: str
    device: str
    talker_dtype: str
    codec_dtype: str
    threads: int
    frames: int
    positions: int
    packet_frames: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One batch size in one mode. Rates are frames for a second of the part's own time; `total` is all of a turn.

    `other_s`: the loop itself, the text front end and drawing the first codes. `slot_bytes`: talker positions and codec
    history of one stream. `peak_bytes`: the most that was in use up to here, weights included.
    """

    mode: str
    streams: int
    frames: int
    talker_frames_s: float
    predictor_frames_s: float
    codec_frames_s: float
    total_frames_s: float
    audio_s_per_s: float
    prefill_s: float
    other_s: float
    total_s: float
    slot_bytes: int
    peak_bytes: int


def price(rows: Sequence[Row]) -> dict[int, float]:
    """How many times longer deterministic mode takes than the default, for each batch size that has both."""
    rate = {(row.mode, row.streams): row.total_frames_s for row in rows}
    return {
        streams: rate["default", streams] / slow
        for (mode, streams), slow in rate.items()
        if mode == "deterministic" and slow > 0 and ("default", streams) in rate
    }


def batch_table(rows: Sequence[Row]) -> Table:
    """The rows, modes of one batch size beside each other."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ("streams", "mode", "talker f/s", "predictor f/s", "codec f/s", "total f/s", "audio s/s", "slot", "peak")
    for column in columns:
        table.add_column(column, justify="left" if column == "mode" else "right")
    for row in sorted(rows, key=lambda each: (each.streams, each.mode)):
        rates = (row.talker_frames_s, row.predictor_frames_s, row.codec_frames_s, row.total_frames_s)
        table.add_row(
            str(row.streams),
            row.mode,
            *(f"{rate:.1f}" for rate in rates),
            f"{row.audio_s_per_s:.2f}",
            f"{row.slot_bytes / _MIB:.1f} MiB",
            f"{row.peak_bytes / _MIB:.0f} MiB",
        )
    return table


def as_json(setting: Setting, rows: Sequence[Row]) -> dict[str, object]:
    """Everything, for a file."""
    return {
        "setting": asdict(setting),
        "rows": [asdict(row) for row in rows],
        "price_of_determinism": {str(streams): times for streams, times in price(rows).items()},
    }
