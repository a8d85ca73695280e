"""Compare Legato with its peers on one checkpoint, in alternating rounds.

    .venv/bin/python -m benchmarks.peers.run [--checkpoint DIR] [--gguf TALKER CODEC] [--rounds 3] [--records FILE]

Creates what is missing: a checkpoint with random weights at the official 0.6B size, a separate virtual environment for
the peers, and the converted weights of `vox-tts`. Each system is one process that loads once. In every round each
system synthesizes once, in random order. Rounds are appended to the records; the report covers all of them. A system
that does not start is reported and skipped.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.peers.report import Result, report
from benchmarks.peers.worker import Settings

ROOT = Path(__file__).resolve().parents[2]
SPEAKER = "vivian"
SYSTEMS = (
    ("legato", "float32"),
    ("legato", "bfloat16"),
    ("legato", "int8"),
    ("legato", "int8+bfloat16"),
    ("qwen-tts", "float32"),
    ("qwen-tts", "bfloat16"),
    ("vox-tts", "q8"),
    ("native-cpu", "gguf"),
)


@dataclass(frozen=True)
class Worker:
    """The process of a system and variant."""

    system: str
    variant: str
    process: subprocess.Popen[str]

    def exchange(self, line: str = "") -> str:
        """Send a line (or none) and read one; "" if the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if line:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        return self.process.stdout.readline().strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--checkpoint", type=Path, help="0.6B CustomVoice folder (default: random weights, created once)"
    )
    parser.add_argument("--gguf", type=Path, nargs=2, metavar=("TALKER", "CODEC"), help="for native-cpu")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peers", help="environment, weights, records")
    parser.add_argument(
        "--records", type=Path, help="JSON lines file to append rounds to (default: in the work folder)"
    )
    parser.add_argument("--systems", default=",".join("=".join(each) for each in SYSTEMS), help="SYSTEM=VARIANT,...")
    parser.add_argument("--speaker", default=SPEAKER)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=25, help="80 ms each")
    parser.add_argument("--packet-frames", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    records = arguments.records or arguments.work / "records.jsonl"
    checkpoint = arguments.checkpoint or create_checkpoint(arguments.work / "cv06")
    peers = create_environment(arguments.work / "venv")
    started: list[Worker] = []
    for system, variant in (tuple(each.split("=")) for each in arguments.systems.split(",")):
        model = model_of(system, variant, checkpoint, arguments.work, peers, arguments.gguf or ())
        if model is None:
            continue
        settings = Settings(
            model=[str(each) for each in model],
            variant=variant,
            threads=arguments.threads,
            frames=arguments.frames,
            packet_frames=arguments.packet_frames,
            speaker=arguments.speaker,
        )
        python = Path(sys.executable) if system == "legato" else peers
        worker = start(system, settings, python)
        if worker is not None:
            started.append(worker)
    try:
        for index in range(arguments.rounds + 1):
            run_round(started, index, arguments, records)
    finally:
        for each in started:
            each.process.kill()
            each.process.wait()
    print(report(read_results(records)))
    return 0 if started else 1


# --- preparation -----------------------------------------------------------------------------------------------------


def create_checkpoint(folder: Path) -> Path:
    """Random weights at the official size."""
    if not folder.is_dir():
        from legato.weights.random_checkpoint import write_checkpoint

        log(f"writing {folder}: random weights, 0.6B CustomVoice")
        write_checkpoint("0.6B-CustomVoice", folder)
    return folder


def create_environment(folder: Path) -> Path:
    """Create the virtual environment of the peers once; returns its Python."""
    python, stamp = folder / "bin" / "python", folder / "made.stamp"
    if not stamp.exists():
        log(f"creating {folder}: the peers and their dependencies, once")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        here = Path(__file__).parent
        pinned = [line for line in (here / "requirements.txt").read_text().splitlines() if "==" in line]
        for options in (
            ("-r", str(ROOT / "parity" / "requirements.txt")),
            ("--no-deps", *(line for line in pinned if line.startswith("qwen-tts"))),
            tuple(line for line in pinned if not line.startswith("qwen-tts")),
        ):
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *options], check=True)
        stamp.touch()
    return python


def model_of(
    system: str, variant: str, checkpoint: Path, work: Path, peers: Path, gguf: Sequence[Path]
) -> tuple[Path, ...] | None:
    """The files that the system loads, or None if they are not given."""
    if system == "native-cpu":
        if not gguf:
            log("native-cpu skipped: it needs --gguf TALKER CODEC, converted from the same checkpoint")
            return None
        return tuple(gguf)
    if system != "vox-tts":
        return (checkpoint,)
    converted = work / f"{checkpoint.name}.{variant}.tmod"
    if not converted.exists():
        log(f"writing {converted} with the converter of vox-tts")
        command = [str(peers), "-m", "vox.build", "--model", str(checkpoint), "--dtype", "bf16", "--quant", variant]
        subprocess.run([*command, "-o", str(converted)], check=True)
    return (converted,)


# --- rounds ----------------------------------------------------------------------------------------------------------


def start(system: str, settings: Settings, python: Path) -> Worker | None:
    """Start the system's process and wait until it has loaded; None if it fails."""
    command = [str(python), "-m", "benchmarks.peers.worker", system, json.dumps(asdict(settings))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    worker = Worker(system, settings.variant, process)
    if worker.exchange() == "ready":
        log(f"{system} {settings.variant} has loaded")
        return worker
    process.kill()
    process.wait()
    log(f"{system} {settings.variant} skipped: it did not start (see above)")
    return None


def run_round(workers: Sequence[Worker], at: int, arguments: argparse.Namespace, records: Path) -> None:
    """Run all workers once, in random order, and append the results. Round 0 is warm-up and is not recorded."""
    run = f"{RUN_AT:.0f}"
    for each in random.Random(f"{run} {at}").sample(workers, len(workers)):
        line = each.exchange(str(at))
        if not line:
            log(f"{each.system} {each.variant} exited (see above)")
            continue
        result = Result(
            system=each.system,
            variant=each.variant,
            run=run,
            threads=arguments.threads,
            packet_frames=arguments.packet_frames,
            **json.loads(line),
        )
        log(f"round {at}: {result.name}: RTF {result.real_time_factor:.2f}")
        if at:
            with records.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")


def read_results(records: Path) -> list[Result]:
    """All recorded rounds."""
    if not records.exists():
        return []
    return [Result(**json.loads(line)) for line in records.read_text(encoding="utf-8").splitlines()]


def log(message: str) -> None:
    """Print progress to stderr; the report goes to stdout."""
    print(message, file=sys.stderr, flush=True)


RUN_AT = time.time()
"""Identifies the rounds of this call in the records."""

if __name__ == "__main__":
    sys.exit(main())
