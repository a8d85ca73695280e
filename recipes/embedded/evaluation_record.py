"""Evaluation results: one row per system, speaker and list.

They are stored as `evaluation.json` and, as a Markdown table, in `evaluation.md`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

LISTS = ("plain", "hard", "numbers_and_names")
SYSTEMS = ("teacher", "codec", "oracle", "training", "voice")
HEAD = """# Evaluation of the embedded voice

Written by `python recipes/embedded/evaluate.py --record docs/voice`; `evaluation.json` has more columns. Systems:
*voice* is the shipped voice, run with the Legato package; *teacher* is Kokoro; *codec* is the decoder on the teacher's
codes; *oracle* is talker and decoder with the teacher's durations. Word error rate by whisper tiny.en, DNSMOS overall,
similarity to the teacher's voice by resemblyzer. Goals: WER 0.08 plain and 0.25 hard, DNSMOS 2.2.

"""


@dataclass
class Score:
    """Result of one system on one list."""

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
        """Identifies the row, and is its sort key."""
        return SYSTEMS.index(self.system), self.speaker, LISTS.index(self.list)


def table(rows: Sequence[Score]) -> str:
    lines = [
        "| system | voice | list | sentences | WER (each seed) | DNSMOS | speaker similarity | RTF |",
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
    """Add the row to the files in `folder`. Replaces an earlier row with the same key."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "evaluation.json"
    kept = [Score(**found) for found in json.loads(path.read_text())] if path.exists() else []
    kept = [found for found in kept if found.key != row.key]
    rows = sorted([*kept, row], key=lambda found: found.key)
    path.write_text(json.dumps([asdict(found) for found in rows], indent=1, ensure_ascii=False) + "\n")
    (folder / "evaluation.md").write_text(HEAD + table(rows))
