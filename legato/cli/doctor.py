"""`legato doctor`: report what this machine supports, what is missing, and how to install it.

Holds no state; the checks are in `doctor_checks.py`.
"""

from __future__ import annotations

import click

from legato.cli.doctor_checks import machine_findings, model_findings
from legato.cli.model_options import max_seq_len_option, model_option
from legato.cli.terminal import print_table

EPILOG = """\b
Examples:
  legato doctor
  legato doctor -m Qwen/Qwen3-TTS-12Hz-0.6B-Base      also the memory that this model needs (downloads it if missing)

Exit code 1 if something is missing that is required for speech. ffmpeg, sox and flash-attn are optional.
"""

_MARKS = {"ok": "ok", "optional": "-", "missing": "MISSING"}


@click.command(epilog=EPILOG, short_help="Report what this machine supports and what is missing.")
@model_option(default=None, help_text="Also report the memory that this model needs.  [default: none]")
@max_seq_len_option(2048)
def doctor(model: str | None, max_seq_len: int) -> int:
    """Report what this machine supports and what is missing."""
    findings = machine_findings()
    if model is not None:
        findings += model_findings(model, max_seq_len)
    print_table(("", "what", "found"), [(_MARKS[finding.state], finding.what, finding.found) for finding in findings])
    remedies = [finding for finding in findings if finding.remedy]
    if remedies:
        click.echo()
    for finding in remedies:
        click.echo(f"{finding.what}: {finding.remedy}")
    return 1 if any(finding.state == "missing" for finding in findings) else 0
