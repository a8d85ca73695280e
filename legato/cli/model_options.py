"""Options for choosing a model and how to run it, shared by all commands that load one.

Holds no state and does not import torch; `loading.py` loads the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any

import click

from legato.cli.options import Command, Decorator, add_options, option_group, renamed_option
from legato.config.quantization import CHOICES

DTYPES = ("auto", "float32", "bfloat16")
DEFAULT_MODEL = "embedded"
_MODEL_HELP = "Model: embedded (the voice in this package), a checkpoint folder, or a hub id (see `legato models`)."


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model to load and how to run it. `threads` None: see `cpus.default_threads`; `quant` None: the default."""

    model: str
    device: str
    dtype: str
    codec_dtype: str
    threads: int | None
    quant: str | None
    revision: str | None = None
    """Branch, tag or commit of a model on the hub; None is the latest."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Limits and modes of the engine, with the defaults of `legato say`."""

    max_num_seqs: int = 1
    max_seq_len: int = 2048
    max_queue: int = 64
    yield_s: float = 1.0
    deterministic: bool = False
    cuda_graphs: bool = True


_RUN_OPTIONS = (
    click.option(
        "--revision",
        metavar="REV",
        help="Branch, tag or commit of a model on the hub; also MODEL@REV.  [default: main]",
    ),
    click.option("--device", default="cpu", show_default=True, help="Device to run on: cpu, cuda or cuda:N."),
    click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        default="auto",
        show_default=True,
        help="Dtype of talker and code predictor; auto is float32 on CPU, bfloat16 on CUDA.",
    ),
    click.option(
        "--codec-dtype",
        type=click.Choice(DTYPES),
        default="auto",
        show_default=True,
        help="Dtype of the codec; auto is float32, or with default quantization bfloat16 on CPUs that multiply it.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        help="CPU threads.  [default: the physical cores available to this process]",
    ),
    click.option(
        "--quant",
        type=click.Choice(CHOICES),
        show_default="auto on a CPU for checkpoints of 0.6B and more, else none",
        help="Quantize the weights of talker and code predictor while loading (CPU); auto chooses the fastest mode for "
        "this CPU. Not needed for checkpoints of `legato quantize`.",
    ),
)


def model_option(*, default: str | None = DEFAULT_MODEL, help_text: str = _MODEL_HELP) -> Decorator:
    """`--model/-m`."""
    return click.option("--model", "-m", default=default, show_default=True, metavar="MODEL", help=help_text)


def model_options(*, positional: bool = False) -> Decorator:
    """`--model --device --dtype --codec-dtype --threads --quant`, passed as `model_options`.

    With `positional` the model can also be given as an argument.
    """

    def decorate(command: Callable[..., object]) -> Callable[..., object]:
        grouped = option_group("model_options", ModelOptions, _RUN_OPTIONS)(command)
        return _model_option_or_argument(grouped) if positional else model_option()(grouped)

    return decorate


def models_options(command: Callable[..., object]) -> Callable[..., object]:
    """Like `model_options`, with a repeatable `--model`; passed as `models`, a list of `ModelOptions`."""

    @wraps(command)
    def with_models(*arguments: object, model: tuple[str, ...], **values: Any) -> object:
        shared = {each.name: values.pop(each.name) for each in fields(ModelOptions) if each.name != "model"}
        models = [ModelOptions(model=name, **shared) for name in model or (DEFAULT_MODEL,)]
        return command(*arguments, models=models, **values)

    option = click.option(
        "--model",
        "-m",
        multiple=True,
        metavar="MODEL",
        help=f"{_MODEL_HELP} Repeatable: the first is the default model.  [default: {DEFAULT_MODEL}]",
    )
    return option(add_options(with_models, _RUN_OPTIONS))


def _model_option_or_argument(command: Callable[..., object]) -> Callable[..., object]:
    @wraps(command)
    def with_model(*arguments: object, model_argument: str | None, model: str | None, **values: Any) -> object:
        if model_argument is not None and model is not None:
            raise click.UsageError("give the model as an argument or with --model, not both")
        return command(*arguments, model=model_argument or model or DEFAULT_MODEL, **values)

    option = model_option(default=None, help_text=f"{_MODEL_HELP}  [default: {DEFAULT_MODEL}]")
    return click.argument("model_argument", metavar="[MODEL]", required=False)(option(with_model))


def deterministic_option(command: Command) -> Command:
    """`--deterministic`."""
    return click.option(
        "--deterministic",
        is_flag=True,
        help="Bit-identical output for the same request and seed, whatever else is being served (CPU, float32). "
        "Without native kernels this disables batching.",
    )(command)


def cuda_graphs_option(command: Callable[..., object]) -> Callable[..., object]:
    """`--no-cuda-graphs`."""
    return renamed_option(
        "--no-cuda-graphs",
        "--no-graphs",
        "cuda_graphs",
        flag_value=False,
        default=True,
        help="On CUDA, launch kernels one by one instead of replaying CUDA graphs.  [default: use CUDA graphs]",
    )(command)


def max_num_seqs_option(default: int | None, *, help_text: str, old: str = "--slots") -> Decorator:
    """`--max-num-seqs`."""
    return renamed_option(
        "--max-num-seqs",
        old,
        "max_num_seqs",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        help=help_text,
    )


def max_seq_len_option(default: int) -> Decorator:
    """`--max-seq-len`."""
    return renamed_option(
        "--max-seq-len",
        "--positions",
        "max_seq_len",
        type=click.IntRange(16),
        default=default,
        show_default=True,
        help="Maximum sequence length: prompt positions plus frames (12.5 a second). Sets the size of a KV slot.",
    )


def yield_option(function: Callable[..., object]) -> Callable[..., object]:
    """`--yield-s`."""
    return click.option(
        "--yield-s",
        type=click.FloatRange(0),
        default=1.0,
        show_default=True,
        help="Idle seconds (no text, or a full buffer) after which a stream gives its slot to a waiting one.",
    )(function)


def max_queue_option(default: int) -> Decorator:
    """`--max-queue`."""
    return renamed_option(
        "--max-queue",
        "--queue",
        "max_queue",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        help="Maximum number of streams that wait for a slot; further requests are refused.",
    )
