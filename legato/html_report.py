"""Building blocks of self-contained HTML reports: one file without scripts, fonts or images, in light and dark colours.

Contains the document frame and the shared style of text, metadata and tables; each report adds styles of its own.
Arguments named text, title or note are escaped. All other strings must be HTML already.
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


def html_document(title: str, parts: Iterable[str], *, style: str) -> str:
    """A complete document: the title as heading, then the parts. `style` follows the shared style and overrides it."""
    body = "\n".join(parts)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}{style}</style></head><body>
<h1>{escape(title)}</h1>
{body}
</body></html>
"""


def metadata_list(metadata: Iterable[tuple[str, str]]) -> str:
    """A description list of (name, value) pairs, both plain text."""
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in metadata)
    return f"<dl>{items}</dl>"


def section(title: str, content: str, note: str = "") -> str:
    """A titled section with an optional note. Content wider than the window scrolls horizontally."""
    paragraph = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<h2>{escape(title)}</h2>{paragraph}<div class="wide">{content}</div>'


def table(headings: Iterable[str], rows: Iterable[str]) -> str:
    """A table from heading cells and complete `<tr>` rows."""
    body = "\n".join(rows)
    return f"<table><thead><tr>{''.join(headings)}</tr></thead><tbody>\n{body}\n</tbody></table>"


def cell(text: str, kind: str = "", *, tag: str = "td") -> str:
    """One table cell, or with tag "th" a heading cell; `kind` is its class attribute."""
    style = f' class="{kind}"' if kind else ""
    return f"<{tag}{style}>{escape(text)}</{tag}>"
