"""`make test-clients`: run each client against a server with the embedded voice, and print a table of the checks.

    .venv/bin/python -m clients.run --python .venv-clients/bin/python

Each client is a program of its own that knows only the address of the server, and reports its checks as JSON lines. The
exit status is 1 if a check fails that is not in `KNOWN_FAILURES`, or if a check in it passes. npm clients are skipped
where there is no `npm`. Keeps no state.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PROGRAMS: tuple[str, ...] = (
    "openai_sdk",
    "litellm_sdk",
    "dashscope_sdk",
    "wyoming_client",
    "open_webui",
    "pipecat_pipeline",
)
PROGRAMS += ("livekit_plugins", "realtimetts_engine")
KNOWN_FAILURES = {("RealtimeTTS", "OpenAIEngine"): "the package needs PyAudio, and so the PortAudio library"}
"""(package, check): why it fails, if the cause is not in Legato."""
PROGRAM_S = 300.0
START_S = 120.0


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a client. `error`: None if it passed."""

    package: str
    version: str
    name: str
    error: str | None


@contextmanager
def server() -> Iterator[tuple[str, int]]:
    """A server with the embedded voice: its address and the port of Wyoming."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "legato", "serve", "--port", "0", "--wyoming", "0", "--max-num-seqs", "2"]
        command += ["--voices", f"{folder}/voices"]
        with log.open("w") as output, subprocess.Popen(command, stderr=output) as process:
            try:
                url = _wait_for(process, log, r"listening on (http://\S+)")
                wyoming = _wait_for(process, log, r"Wyoming listens on \S+:(\d+)")
                _wait_until_ready(url)
                yield url, int(wyoming)
            finally:
                process.terminate()
                process.wait(60)


def _wait_for(process: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and process.poll() is None:
        found = re.search(pattern, log.read_text())
        if found:
            return found[1]
        time.sleep(0.1)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


def _wait_until_ready(url: str) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=10):
                return
        except urllib.error.HTTPError:
            time.sleep(0.1)
    raise SystemExit("the server did not become ready")


def run_program(command: list[str]) -> list[Check]:
    """Run one client. A client that ends early, or reports nothing, is a failed check."""
    name = Path(command[1]).stem
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
        output, error = run.stdout, run.stderr if run.returncode else ""
    except subprocess.TimeoutExpired:
        output, error = "", f"not finished after {PROGRAM_S:.0f} s"
    reports = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    package, version = name, ""
    checks: list[Check] = []
    for report in reports:
        if "package" in report:
            package, version = report["package"], report["version"]
        else:
            checks.append(Check(package, version, report["check"], report["error"]))
    if error or not checks:
        checks.append(Check(package, version, "runs to its end", (error or "no checks were reported").strip()[-300:]))
    return checks


def table(checks: list[Check]) -> str:
    """Markdown, one row for each check."""
    lines = ["| client | version | check | result |", "|---|---|---|---|"]
    for check in checks:
        result = "passed" if check.error is None else check.error.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {check.package} | {check.version} | {check.name} | {result} |")
    return "\n".join(lines)


def unexpected(checks: list[Check]) -> list[str]:
    """Failures that are not known, and known failures that have passed."""
    found = []
    for check in checks:
        known = KNOWN_FAILURES.get((check.package, check.name))
        if check.error is not None and known is None:
            found.append(f"{check.package}: {check.name}: {check.error}")
        if check.error is None and known is not None:
            found.append(f"{check.package}: {check.name} passes now: remove it from KNOWN_FAILURES")
    return found


def main() -> int:
    """Run all clients; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True, help="Python of the environment with the clients")
    parser.add_argument("--only", nargs="*", default=[], metavar="PROGRAM", help=f"among {', '.join(PROGRAMS)}, npm")
    arguments = parser.parse_args()
    checks: list[Check] = []
    with server() as (url, wyoming):
        for program in PROGRAMS:
            if not arguments.only or program in arguments.only:
                path = FOLDER / "programs" / f"{program}.py"
                checks += run_program([arguments.python, str(path), url, str(wyoming)])
        if (FOLDER / "npm" / "node_modules").is_dir() and (not arguments.only or "npm" in arguments.only):
            checks += run_program([shutil.which("node") or "node", str(FOLDER / "npm" / "sdk.mjs"), url])
        elif not arguments.only:
            print("npm clients are not installed and were skipped", file=sys.stderr)
    print(table(checks))
    faults = unexpected(checks)
    print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
