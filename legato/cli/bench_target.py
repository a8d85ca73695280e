"""Options and setup shared by `legato bench latency` and `load`: engine limits, workload, loaded model, transports.

`load_target` starts the engine and closes it when the benchmark ends. The model is loaded as in `legato serve`. If
stages are measured, the engine also synchronizes with the device after each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from legato.cli.loading import load_weights, prepare_device
from legato.cli.model_options import (
    ModelOptions,
    cuda_graphs_option,
    max_queue_option,
    max_seq_len_option,
    model_options,
)
from legato.cli.options import option_group, renamed_option
from legato.cli.serve import require_server
from legato.errors import InputError
from legato.types import DEFAULT_PACKET_FRAMES

if TYPE_CHECKING:
    from legato.bench.measure import Target
    from legato.bench.transports import Transport
    from legato.bench.workload import Workload

TRANSPORTS = ("in-process", "http", "websocket")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Values of the engine and workload options. `run`: number of the process with `--processes`."""

    text: tuple[str, ...]
    seed: int
    packet_frames: tuple[int, ...]
    max_frames: int
    text_rate: float
    prebuffer_ms: float
    clone: Path | None
    ref_text: str
    max_seq_len: int
    max_queue: int
    cuda_graphs: bool
    run: int

    def workload(self, kind: str) -> Workload:
        """The workload for a model of `kind`. A Base model clones --clone or, by default, a synthetic tone."""
        from legato.bench.workload import INSTRUCT, TEXTS, Workload, reference_tone

        recording = self.clone.read_bytes() if self.clone is not None else reference_tone()
        return Workload(
            texts=self.text or TEXTS,
            seed=self.seed,
            packet_frames=self.packet_frames,
            max_frames=self.max_frames,
            text_tokens_per_s=self.text_rate,
            prebuffer_ms=self.prebuffer_ms,
            instruct=INSTRUCT if kind == "voice_design" else "",
            reference=recording if kind == "base" else b"",
            transcript=self.ref_text if kind == "base" else "",
        )

    def check_transports(self, transports: tuple[str, ...]) -> None:
        """Raise `InputError` if --text-rate is combined with HTTP, which sends the whole text in one request."""
        if self.text_rate and "http" in transports:
            raise InputError(
                "HTTP sends the whole text in one request: with --text-rate use --transport in-process or websocket",
                field="text-rate",
            )


AUTO = "auto"
"""Value of --packet-frames: the engine chooses."""


def _parse_frame_counts(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, ...]:
    from legato.engine.packetizer import PacketPolicy

    if value == AUTO:
        return ()
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(
            f"give whole numbers such as 1,2,4, or auto, not {value!r}", param_hint="--packet-frames"
        )
    return PacketPolicy(tuple(map(int, parts))).frames


_OPTIONS = (
    click.option("--text", multiple=True, help="Text to synthesize; repeatable.  [default: six, short and long]"),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Seed for sampling and for request arrival times.",
    ),
    click.option(
        "--packet-frames",
        callback=_parse_frame_counts,
        default=",".join(map(str, DEFAULT_PACKET_FRAMES)),
        show_default=True,
        metavar="N,N,...",
        help="Frames (80 ms) in the first, second, ... packet; auto chooses them for playback without a gap. The "
        "Qwen3-TTS report uses 4.",
    ),
    click.option(
        "--max-frames",
        type=click.IntRange(min=0),
        default=0,
        show_default="whole texts",
        help="Stop each request after this many frames.",
    ),
    click.option(
        "--text-rate",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default="all text at once",
        help="Stream the text at this many tokens (4 characters each) per second, like the output of an LLM.",
    ),
    renamed_option(
        "--prebuffer-ms",
        "--start-ms",
        "prebuffer_ms",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        help="Audio that the client buffers before playback starts (stage playout).",
    ),
    click.option(
        "--clone",
        type=click.Path(path_type=Path, exists=True),
        help="Recording to clone with a Base model.  [default: a synthetic tone]",
    ),
    click.option("--ref-text", default="", help="Transcript of the recording.  [default: none]"),
    max_seq_len_option(1024),
    max_queue_option(64),
    cuda_graphs_option,
    click.option("--run", type=click.IntRange(min=0), default=0, hidden=True),
)


def bench_options(command: Callable[..., object]) -> Callable[..., object]:
    """The model options, passed as `model_options`, and all options above, passed as `options`."""
    return model_options(positional=True)(option_group("options", BenchOptions, _OPTIONS)(command))


@contextmanager
def load_target(
    model_options: ModelOptions, options: BenchOptions, *, max_num_seqs: int, synchronized: bool
) -> Iterator[Target]:
    """Load the model and start an engine. `synchronized`: the engine waits for the device after each stage."""
    require_server("this benchmark", "websockets")
    from legato.api import Legato
    from legato.bench.environment import model_info, synchronize_fn, this_machine
    from legato.bench.measure import Target
    from legato.config.engine import EngineConfig

    prepare_device(model_options)
    backend = load_weights(model_options)
    config = EngineConfig(
        max_num_seqs=max_num_seqs,
        kv_slots=max_num_seqs + 1,
        max_seq_len=options.max_seq_len,
        max_queue=options.max_queue,
        cuda_graphs=options.cuda_graphs,
    )
    with Legato(backend, config, synchronize=synchronize_fn(backend.model) if synchronized else lambda: None) as tts:
        info = model_info(model_options.model, backend, cuda_graphs=options.cuda_graphs)
        # On a CPU a call returns when its work is done, so no synchronization is needed.
        stages_synchronized = synchronized or model_options.device.startswith("cpu")
        yield Target(tts, this_machine(model_options.device), info, stages_synchronized, options.run)


@contextmanager
def open_transports(target: Target, names: tuple[str, ...]) -> Iterator[list[Transport]]:
    """The transports called `names`; a local server runs while one of them needs it."""
    from legato.bench.transports import HttpTransport, InProcessTransport, WebSocketTransport, serve_locally

    with ExitStack() as stack:
        transports: list[Transport] = []
        if "in-process" in names:
            transports.append(InProcessTransport(target.tts))
        if "http" in names or "websocket" in names:
            server = stack.enter_context(serve_locally(target.tts))
            if "http" in names:
                transports.append(HttpTransport(server.url, server.server_record))
            if "websocket" in names:
                transports.append(WebSocketTransport(server.url, server.server_record))
        yield transports
