"""A report as one HTML page that needs nothing beside it: no script, no font, no image, light and dark.

Owns the frame of such a page, and the style of what all of them have: text, facts, tables. A page adds the style of the
rest. Knows no report and measures nothing. What is called text, title or note is escaped; all else is HTML already.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1c2226; --soft: #5b666d; --paper: #fdfdfc; --band: #f1f3f4; --line: #dbe0e3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ec; --soft: #98a5ad; --paper: #13171a; --band: #1c2226;
  --line: #2f383d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .25rem; }
.note, dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { text-align: left; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
"""


def sheet(title: str, parts: Iterable[str], *, style: str) -> str:
    """The page: the title as its heading, then the parts. `style` comes after the shared one, and so prevails."""
    shown = "\n".join(parts)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}{style}</style></head><body>
<h1>{escape(title)}</h1>
{shown}
</body></html>
"""


def facts_list(facts: Iterable[tuple[str, str]]) -> str:
    """Names and values, both text."""
    told = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f"<dl>{told}</dl>"


def section(title: str, content: str, note: str = "") -> str:
    """What may be wider than a window, under its title and how to read it."""
    told = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<h2>{escape(title)}</h2>{told}<div class="wide">{content}</div>'


def table(headings: Iterable[str], rows: Iterable[str]) -> str:
    """`headings` are cells, `rows` are rows of cells."""
    body = "\n".join(rows)
    return f"<table><thead><tr>{''.join(headings)}</tr></thead><tbody>\n{body}\n</tbody></table>"


def cell(text: str, kind: str = "", *, tag: str = "td") -> str:
    """One cell of a row (or, with the tag "th", of the headings); `kind`: its classes."""
    style = f' class="{kind}"' if kind else ""
    return f"<{tag}{style}>{escape(text)}</{tag}>"
