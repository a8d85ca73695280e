"""The record of an evaluation: a row for each system, speaker and list, as JSON and as a table to read.

Owns `evaluation.json` and `evaluation.md` of a folder, and the order of their rows. Knows no model and no judge.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

LISTS = ("plain", "hard", "numbers_and_names")
SYSTEMS = ("teacher", "codec", "oracle", "training", "voice")
HEAD = """# What the embedded voice scores

Written by `python recipes/embedded/evaluate.py --record docs/voice`; `evaluation.json` has the rest of each row.
*voice* is what ships, through the Legato package; *teacher* is Kokoro, *codec* the decoder on the teacher's codes,
*oracle* talker and decoder with the teacher's durations. Word error rate by whisper tiny.en, DNSMOS over all,
likeness to the teacher's voice by resemblyzer. Goals: 0.08 plain, 0.25 hard, DNSMOS 2.2.

"""


@dataclass
class Score:
    """One system on one list: words wrong, and how it sounds."""

    system: str
    speaker: str
    list: str
    sentences: int
    wer: float
    wer_by_seed: list[float] = field(default_factory=list)
    mos: dict[str, float] = field(default_factory=dict)
    similarity: float | None = None
    real_time_factor: float | None = None
    worst: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, str, int]:
        """What a record has one row of, in the order of the table."""
        return SYSTEMS.index(self.system), self.speaker, LISTS.index(self.list)


def table(rows: Sequence[Score]) -> str:
    lines = [
        "| system | voice | list | sentences | WER (each seed) | DNSMOS | speaker likeness | real-time factor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        seeds = f"{row.wer:.3f}"
        if len(row.wer_by_seed) > 1:
            seeds += f" ({', '.join(f'{wer:.3f}' for wer in row.wer_by_seed)})"
        mos = row.mos.get("ovrl_mos", "")
        lines.append(
            f"| {row.system} | {row.speaker} | {row.list} | {row.sentences} | {seeds} | {mos} | "
            f"{row.similarity if row.similarity is not None else ''} | {row.real_time_factor or ''} |"
        )
    return "\n".join(lines) + "\n"


def record(row: Score, folder: Path) -> None:
    """Puts the row into the folder's record, in the place of an earlier one of the same system, speaker and list."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "evaluation.json"
    kept = [Score(**found) for found in json.loads(path.read_text())] if path.exists() else []
    kept = [found for found in kept if found.key != row.key]
    rows = sorted([*kept, row], key=lambda found: found.key)
    path.write_text(json.dumps([asdict(found) for found in rows], indent=1, ensure_ascii=False) + "\n")
    (folder / "evaluation.md").write_text(HEAD + table(rows))
