"""A report as one HTML page: facts, tables and plots.

Owns the style of its tables and plots, beside that of all such pages (`legato.sheet`). What it shows was made
elsewhere; names in it are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from legato.bench.grid import Grid, to_html
from legato.sheet import facts_list, section, sheet

STYLE = """
:root { --c0: #8a97a0; --c1: #b9c2c8; --c2: #6d7b85; --c3: #2f6fb3; --c4: #63a0dd; --c5: #7a5bbf; --c6: #b39be0;
  --c7: #d9822b; --c8: #3a9a6b; --c9: #8fcfae; --c10: #c94f6d; --c11: #d9b23a; }
@media (prefers-color-scheme: dark) { :root { --c0: #7b8891; --c1: #4f5a62; --c2: #9aa8b1; --c3: #4b8fd6; --c4: #8fc0f0;
  --c5: #9479d6; --c6: #c4b1ee; --c7: #e69a4c; --c8: #4fb884; --c9: #2f7d57; --c10: #e06d8a; --c11: #e3c258; } }
body { max-width: 76rem; }
p { margin: .25rem 0 .75rem; max-width: 60rem; }
dl { columns: 22rem; column-gap: 2rem; font-size: .9rem; margin: .75rem 0; }
dl div { display: grid; grid-template-columns: 9.5rem 1fr; break-inside: avoid; padding: .05rem 0; }
th, td { vertical-align: bottom; padding: .25rem .9rem .25rem 0; }
td:first-child { white-space: nowrap; }
th.number { white-space: normal; min-width: 4rem; }
tr.marked td { background: var(--band); font-weight: 600; }
svg { display: block; width: 100%; max-width: 60rem; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); }
svg .tick, svg .small { fill: var(--soft); font-size: 11px; }
svg .middle { text-anchor: middle; }
svg .end { text-anchor: end; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .mark { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; }
svg .line { fill: none; stroke-width: 2; }
svg .dashed { stroke-dasharray: 5 4; }
"""
COLOUR_RULES = "\n".join(
    f"svg .fill.c{at}, svg .dot.c{at} {{ fill: var(--c{at}); }} svg .line.c{at} {{ stroke: var(--c{at}); }}"
    for at in range(12)
)


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture with what it shows and how to read it."""

    title: str
    svg: str
    note: str = ""


def to_page(title: str, facts: Sequence[tuple[str, str]], parts: Sequence[Grid | Plot]) -> str:
    """The page: facts first, then tables and plots in the order given."""
    shown = [to_html(part) if isinstance(part, Grid) else section(part.title, part.svg, part.note) for part in parts]
    return sheet(title, [facts_list(facts), *shown], style=STYLE + COLOUR_RULES)
