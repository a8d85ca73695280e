"""Legato and the peers on one checkpoint, in turn, in one go.

    .venv/bin/python -m benchmarks.peers.run [--checkpoint DIR] [--gguf TALKER CODEC] [--rounds 3] [--records FILE]

Makes what is missing: a checkpoint with random weights at the official 0.6B size, an environment for the peers (never
Legato's own), the form in which `vox-tts` wants the weights. Each system loads once and stays; in every round each
speaks once, in an order drawn anew. Rounds are added to the records; the report is of all of them. A system that does
not start is named and left out.
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
    *(("legato", "float32"), ("legato", "bfloat16"), ("legato", "int8"), ("legato", "int8+bfloat16")),
    *(("qwen-tts", "float32"), ("qwen-tts", "bfloat16"), ("vox-tts", "q8"), ("native-cpu", "gguf")),
)


@dataclass(frozen=True)
class Contestant:
    """A system with a number format, and the process that speaks for it."""

    system: str
    variant: str
    process: subprocess.Popen[str]

    def ask(self, line: str = "") -> str:
        """Send a line (or none) and wait for one; "" if the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if line:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        return self.process.stdout.readline().strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--checkpoint", type=Path, help="a 0.6B CustomVoice folder (default: random weights, made once)"
    )
    parser.add_argument("--gguf", type=Path, nargs=2, metavar=("TALKER", "CODEC"), help="for native-cpu")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peers", help="environment, weights, records")
    parser.add_argument(
        "--records", type=Path, help="JSON lines that rounds are added to (default: in the work folder)"
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
    checkpoint = arguments.checkpoint or made_checkpoint(arguments.work / "cv06")
    peers = made_environment(arguments.work / "venv")
    started = []
    for system, variant in (tuple(each.split("=")) for each in arguments.systems.split(",")):
        model = model_of(system, variant, checkpoint, arguments.work, peers, arguments.gguf or ())
        settings = Settings(
            [str(each) for each in model],
            variant,
            arguments.threads,
            arguments.frames,
            arguments.packet_frames,
            arguments.speaker,
        )
        python = Path(sys.executable) if system == "legato" else peers
        started += start(system, settings, python) if model else []
    try:
        for at in range(arguments.rounds + 1):
            play_round(started, at, arguments, records)
    finally:
        for each in started:
            each.process.kill()
            each.process.wait()
    print(report(read_results(records)))
    return 0 if started else 1


# --- what is missing -------------------------------------------------------------------------------------------------


def made_checkpoint(folder: Path) -> Path:
    """Random weights at the official size."""
    if not folder.is_dir():
        from legato.models.synth import write_checkpoint

        say(f"writing {folder}: random weights, 0.6B CustomVoice")
        write_checkpoint("0.6B-CustomVoice", folder)
    return folder


def made_environment(folder: Path) -> Path:
    """The Python of an environment with all peers; torch comes from where this one's came."""
    python, stamp = folder / "bin" / "python", folder / "made.stamp"
    if not stamp.exists():
        say(f"making {folder}: the peers and what they need, once")
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
) -> tuple[Path, ...]:
    """What the system loads; nothing where it was not given."""
    if system == "native-cpu":
        if not gguf:
            say("native-cpu is left out: it needs --gguf TALKER CODEC, converted from the same checkpoint")
        return tuple(gguf)
    if system != "vox-tts":
        return (checkpoint,)
    converted = work / f"{checkpoint.name}.{variant}.tmod"
    if not converted.exists():
        say(f"writing {converted} with the converter of vox-tts")
        command = [str(peers), "-m", "vox.build", "--model", str(checkpoint), "--dtype", "bf16", "--quant", variant]
        subprocess.run([*command, "-o", str(converted)], check=True)
    return (converted,)


# --- rounds ----------------------------------------------------------------------------------------------------------


def start(system: str, settings: Settings, python: Path) -> list[Contestant]:
    """The system's process once it has loaded, or nothing if it could not."""
    command = [str(python), "-m", "benchmarks.peers.worker", system, json.dumps(asdict(settings))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    contestant = Contestant(system, settings.variant, process)
    if contestant.ask() == "ready":
        say(f"{system} {settings.variant} has loaded")
        return [contestant]
    process.kill()
    process.wait()
    say(f"{system} {settings.variant} is left out: it did not start (see above)")
    return []


def play_round(contestants: Sequence[Contestant], at: int, arguments: argparse.Namespace, records: Path) -> None:
    """All speak once, in an order of this round. Round 0 warms up and is not kept."""
    run = f"{RUN_AT:.0f}"
    for each in random.Random(f"{run} {at}").sample(contestants, len(contestants)):
        answer = each.ask(str(at))
        if not answer:
            say(f"{each.system} {each.variant} has ended by itself (see above)")
            continue
        result = Result(
            system=each.system,
            variant=each.variant,
            run=run,
            threads=arguments.threads,
            packet_frames=arguments.packet_frames,
            **json.loads(answer),
        )
        say(f"round {at}: {result.name}: real-time factor {result.real_time_factor:.2f}")
        if at:
            with records.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")


def read_results(records: Path) -> list[Result]:
    """All rounds so far."""
    if not records.exists():
        return []
    return [Result(**json.loads(line)) for line in records.read_text(encoding="utf-8").splitlines()]


def say(what: str) -> None:
    """Progress, apart from the report."""
    print(what, file=sys.stderr, flush=True)


RUN_AT = time.time()
"""Tells the rounds of this call from those of earlier ones."""

if __name__ == "__main__":
    sys.exit(main())
