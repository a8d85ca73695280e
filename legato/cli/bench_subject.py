"""What `legato bench latency` and `load` measure: the options for model, engine and workload, and the loaded subject.

Owns the engine from loading to the end of the measurement. The model is loaded as for `legato serve`, but its engine
waits for the device at the end of each stage where stages are what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import click

from legato.cli.model_options import check_device, compute_options, graphs_option, quant_option, set_threads
from legato.cli.serve import require_server
from legato.cli.terminal import note
from legato.cli.verify import load_weights

if TYPE_CHECKING:
    from legato.bench.observe import Subject
    from legato.bench.ways import Way
    from legato.bench.workload import Workload
    from legato.models.load import LoadedModel

TRANSPORTS = ("in-process", "http", "websocket")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the command line said about the model, the engine and what is spoken."""

    model: str
    device: str
    dtype: str
    codec_dtype: str
    quant: str
    threads: int | None
    graphs: bool
    positions: int
    queue: int
    text: tuple[str, ...]
    seed: int
    packet_frames: tuple[int, ...]
    max_frames: int
    text_rate: float
    start_ms: float
    clone: Path | None
    ref_text: str
    run: int

    def workload(self, kind: str) -> Workload:
        """What is spoken, by a model of `kind`: one that clones gets the recording, or a hum where none is given."""
        from legato.bench.request import INSTRUCT
        from legato.bench.workload import TEXTS, Workload, hum

        recording = self.clone.read_bytes() if self.clone is not None else hum()
        return Workload(
            texts=self.text or TEXTS,
            seed=self.seed,
            packet_frames=self.packet_frames,
            max_frames=self.max_frames,
            text_tokens_s=self.text_rate,
            start_ms=self.start_ms,
            instruct=INSTRUCT if kind == "voice_design" else "",
            reference=recording if kind == "base" else b"",
            transcript=self.ref_text if kind == "base" else "",
        )


def _frames(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, ...]:
    from legato.engine.framing import PacketPolicy

    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"give whole numbers like 1,2,4, not {value!r}", param_hint="--packet-frames")
    return PacketPolicy(tuple(map(int, parts))).frames


_OPTIONS = (
    click.argument("model", default="embedded", metavar="[MODEL]"),
    click.option("--text", multiple=True, help="A text to speak; repeatable.  [default: six, short and long in turn]"),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of codes and arrivals."),
    click.option(
        "--packet-frames",
        callback=_frames,
        default="1,2,4",
        show_default=True,
        metavar="N,N,...",
        help="Frames (80 ms) of the first, second, ... packet. 4 is the packing of the Qwen3-TTS report.",
    ),
    click.option(
        "--max-frames",
        type=click.IntRange(min=0),
        default=0,
        show_default="whole texts",
        help="Stop each request after so many frames.",
    ),
    click.option(
        "--text-rate",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default="all text at once",
        help="Text comes at so many tokens a second, each of 4 characters, as a language model writes it.",
    ),
    click.option(
        "--start-ms",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        help="Sound that the listener collects before it plays; the wait for it is the stage playout.",
    ),
    click.option("--clone", type=click.Path(path_type=Path, exists=True), help="Recording for a Base model."),
    click.option("--ref-text", default="", help="What is said in it."),
    click.option("--positions", type=click.IntRange(min=16), default=1024, show_default=True, help="Of a slot."),
    click.option("--queue", type=click.IntRange(min=1), default=64, show_default=True, help="Streams that may wait."),
    click.option("--run", type=click.IntRange(min=0), default=0, hidden=True),
)


def bench_options(function: Callable[..., object]) -> Callable[..., object]:
    """All of them and those of computing, handed over as one `options`."""

    @wraps(function)
    def wrapped(*arguments: object, **given: object) -> object:
        own = {name: given.pop(name) for name in BenchOptions.__dataclass_fields__}
        return function(*arguments, options=BenchOptions(**own), **given)  # type: ignore[arg-type]

    decorated: Callable[..., object] = compute_options(quant_option(graphs_option(wrapped)))
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


@contextmanager
def subject(options: BenchOptions, *, slots: int, settled: bool) -> Iterator[Subject]:
    """The loaded model behind an engine with `slots` streams at once. `settled`: it waits for the device each stage."""
    require_server("this benchmark", "websockets")
    from legato.api import Legato
    from legato.bench.device import settle_of
    from legato.bench.facts import model_facts, this_machine
    from legato.bench.observe import Subject
    from legato.config.engine import EngineConfig

    check_device(options.device)
    threads = set_threads(options.threads)
    model: LoadedModel = load_weights(options.model, options.device, options.dtype, options.codec_dtype, options.quant)
    note(f"{options.model} on {options.device}, {threads} {'thread' if threads == 1 else 'threads'}, {slots} slots")
    config = EngineConfig(
        streams=slots,
        kv_slots=slots + 1,
        positions=options.positions,
        queue=options.queue,
        graphs=options.graphs,
    )
    with Legato(model, config, settle=settle_of(model) if settled else lambda: None) as tts:
        facts = model_facts(options.model, model, graphs=options.graphs)
        waited = settled or options.device.startswith("cpu")  # there, work is done when its call returns
        yield Subject(tts, this_machine(options.device), facts, waited, options.run)


@contextmanager
def ways(subject: Subject, names: tuple[str, ...]) -> Iterator[list[Way]]:
    """The ways called `names`, with a server of our own where one needs it."""
    from legato.bench.serving import served
    from legato.bench.ways import InProcess, OverHttp, OverSocket

    with ExitStack() as stack:
        found: list[Way] = [InProcess(subject.tts)] if "in-process" in names else []
        if {"http", "websocket"} & set(names):
            server = stack.enter_context(served(subject.tts))
            found += [OverHttp(server.url, server.account)] if "http" in names else []
            found += [OverSocket(server.url, server.account)] if "websocket" in names else []
        yield found
