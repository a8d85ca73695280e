"""Options of every command that loads a model, and the loading: threads set once, progress on standard error.

Owns the process's thread setting. torch is imported here, when a command needs a model, and not before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from legato.cli.terminal import StatusLine, note
from legato.cli.threads import default_threads
from legato.config.quantization import CHOICES, NONE
from legato.errors import UnsupportedError

if TYPE_CHECKING:
    from legato.api import Legato
    from legato.models.load import LoadedModel
    from legato.models.progress import Progress

DTYPES = ("auto", "float32", "bfloat16")
_MIB = 2**20
_Decorated = TypeVar("_Decorated", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What to load and how to compute it. `threads` 0 stands for the default; the rest are limits of the engine."""

    model: str
    device: str
    dtype: str
    codec_dtype: str
    threads: int
    slots: int = 1
    positions: int = 2048
    queue: int = 64
    quant: str = NONE
    deterministic: bool = False
    graphs: bool = True


def model_option(function: _Decorated) -> _Decorated:
    """`--model`."""
    return click.option(
        "--model",
        "-m",
        default="embedded",
        show_default=True,
        metavar="MODEL",
        help="The voice in this package (embedded), a checkpoint's folder, or a hub id: see `legato models`.",
    )(function)


def compute_options(function: _Decorated) -> _Decorated:
    """`--device --dtype --codec-dtype --threads`."""
    for option in (
        click.option(
            "--threads",
            type=click.IntRange(min=1),
            help="Threads for the arithmetic on the CPU.  [default: the physical cores this process may use]",
        ),
        click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N."),
        click.option(
            "--codec-dtype",
            type=click.Choice(DTYPES),
            default="auto",
            show_default=True,
            help="Number format of the codec; auto is float32.",
        ),
        click.option(
            "--dtype",
            type=click.Choice(DTYPES),
            default="auto",
            show_default=True,
            help="Number format of talker and code predictor; auto is float32 on a CPU, bfloat16 on CUDA.",
        ),
    ):
        function = option(function)
    return function


def deterministic_option(function: _Decorated) -> _Decorated:
    """`--deterministic`."""
    return click.option(
        "--deterministic",
        is_flag=True,
        help="The same request and seed are the same to the bit in any company (CPU, float32). Costs the gain of "
        "batching where models are not compiled for this CPU.",
    )(function)


def graphs_option(function: _Decorated) -> _Decorated:
    """`--no-graphs`."""
    return click.option(
        "--no-graphs",
        "graphs",
        flag_value=False,
        default=True,
        help="On CUDA, launch every operation by itself instead of recording the work of a step at the start.",
    )(function)


def quant_option(function: _Decorated) -> _Decorated:
    """`--quant`."""
    return click.option(
        "--quant",
        type=click.Choice(CHOICES),
        default=NONE,
        show_default=True,
        help="Round the weights of talker and code predictor to 8 or 4 bits (CPU); auto takes what is fast here and "
        "says so. A checkpoint of `legato quantize` stays as it is stored.",
    )(function)


def set_threads(threads: int | None) -> int:
    """Tell torch, once for this process, how many threads to use; returns the number.

    And that float32 is float32: on CUDA the inputs of convolutions (cuDNN) would else be rounded to 10 bits (TF32), and
    those of products, too, where the environment asks for it.
    """
    import torch

    count = threads or default_threads()
    torch.set_num_threads(count)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    return count


def locate_chosen(model: str) -> Path:
    """The checkpoint's folder, fetched first if need be, with progress on standard error."""
    from legato.models.locate import locate

    shown = LoadingLine()
    try:
        return locate(model, progress=shown.show)
    finally:
        shown.clear()


def check_device(device: str) -> None:
    """Refuse a device that torch does not have here, before anything is read."""
    import torch

    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise UnsupportedError(f"{device!r} is no device; give cpu, cuda or cuda:N", field="device") from error
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise UnsupportedError(
            f"there is no {device} here: torch sees {torch.cuda.device_count()} CUDA devices (see `legato doctor`)",
            field="device",
        )


def load_chosen(choice: ModelChoice) -> Legato:
    """Load the model with progress on standard error, then say what runs where."""
    import legato

    check_device(choice.device)
    threads = set_threads(choice.threads)
    shown = LoadingLine()
    try:
        tts = legato.load(
            choice.model,
            device=choice.device,
            dtype=choice.dtype,
            codec_dtype=choice.codec_dtype,
            slots=choice.slots,
            positions=choice.positions,
            queue=choice.queue,
            quant=choice.quant,
            deterministic=choice.deterministic,
            graphs=choice.graphs,
            progress=shown.show,
        )
    finally:
        shown.clear()
    note(f"model {choice.model} on {choice.device}, {threads} {'thread' if threads == 1 else 'threads'}")
    tell_notes(tts.model)
    return tts


def tell_notes(model: LoadedModel) -> None:
    """Say by what a loaded model computes."""
    from legato.engine.notes import notes_of

    for remark in notes_of(model):
        note(remark)


class LoadingLine:
    """Progress of fetching and loading as one rewritten line."""

    def __init__(self) -> None:
        self._line = StatusLine(every_s=5.0)

    def show(self, progress: Progress) -> None:
        """Called by the loader."""
        import time

        total = f" of {progress.total / _MIB:.0f}" if progress.total else ""
        text = f"{progress.stage} {progress.item}: {progress.done / _MIB:.0f}{total} MiB"
        if progress.stage in ("download", "write") or self._line.live:
            self._line.show(text, time.monotonic())

    def clear(self) -> None:
        """Done."""
        self._line.clear()
