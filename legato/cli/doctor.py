"""`legato doctor`: what this machine can do, what is missing, and how to get it.

Owns nothing; the findings are made in `doctor_checks.py`.
"""

from __future__ import annotations

import click

from legato.cli.doctor_checks import Finding, machine_findings, model_findings
from legato.cli.terminal import print_table

EPILOG = """\b
Examples:
  legato doctor
  legato doctor -m Qwen/Qwen3-TTS-12Hz-0.6B-Base      also what that model needs (fetches it if it is not here)

Exit code 1 if something is missing without which nothing can be spoken. ffmpeg, sox and flash-attn are not needed.
"""


@click.command(epilog=EPILOG)
@click.option("--model", "-m", default="", metavar="MODEL", help="Also tell what this model needs here.")
@click.option("--positions", default=2048, show_default=True, help="Positions of a slot, for the memory of --model.")
def doctor(model: str, positions: int) -> int:
    """Tell what this machine can do and what is missing."""
    findings = machine_findings() + (model_findings(model, positions) if model else [])
    print_table(("", "what", "found"), [(_MARKS[finding.state], finding.what, finding.found) for finding in findings])
    advice = [finding for finding in findings if finding.remedy]
    if advice:
        click.echo()
    for finding in advice:
        click.echo(f"{finding.what}: {finding.remedy}")
    return 1 if any(finding.state == "missing" for finding in findings) else 0


_MARKS = {"ok": "ok", "optional": "-", "missing": "MISSING"}

__all__ = ["Finding", "doctor"]
