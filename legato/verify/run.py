"""Runs all groups of checks on a loaded model and reports progress. Defines the list of groups.

An exception in a check becomes a failed line of the report; the other groups still run.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from legato import __version__
from legato.backends.base import Backend, description_of
from legato.errors import InputError
from legato.verify import (
    batching,
    cancel,
    codec,
    codec_layers,
    cuda_graphs,
    incremental_text,
    predictor,
    talker,
    voices,
)
from legato.verify.compare import NO_FAILURE, failure
from legato.verify.results import CheckLine, ExecutionInfo, Report
from legato.verify.target import FULL, Depth, Target, dtype_name

Check = Callable[[Target], Iterable[CheckLine]]

GROUPS: dict[str, Check] = {
    codec_layers.CONVOLUTION_GROUP: lambda target: codec_layers.check_convolution(target.device),
    codec_layers.GROUP: codec_layers.check_codec_layers,
    codec.GROUP: codec.check_codec,
    talker.GROUP: talker.check_talker,
    predictor.GROUP: predictor.check_predictor,
    cuda_graphs.GROUP: cuda_graphs.check_cuda_graphs,
    batching.GROUP: batching.check_batching,
    cancel.GROUP: cancel.check_cancel,
    cancel.REUSE_GROUP: cancel.check_reuse,
    incremental_text.GROUP: incremental_text.check_incremental_text,
    voices.GROUP: voices.check_voices,
}


@dataclass(frozen=True, slots=True)
class Progress:
    """Group `number` (from 0) of `groups` is running; the report has `lines` lines so far."""

    group: str
    number: int
    groups: int
    lines: int


RENAMED_GROUPS = {"recorded work": cuda_graphs.GROUP}
"""Former names of groups, which `--group` still accepts."""


def check_groups(groups: Sequence[str]) -> None:
    """Raise an error for an unknown group. Call before loading the model."""
    for group in groups:
        if RENAMED_GROUPS.get(group, group) not in GROUPS:
            raise InputError(f"unknown group {group!r}: use one of {', '.join(GROUPS)}", field="group")


def verify_model(
    backend: Backend,
    *,
    name: str,
    depth: Depth = FULL,
    seed: int = 0,
    progress: Callable[[Progress], None] = lambda _progress: None,
    groups: Sequence[str] = (),
    cuda_graphs: bool = True,
) -> Report:
    """Run the checks of `groups` (default: all) on `backend`. `name` is the name of the model in the report.

    Without `cuda_graphs`, engines run eagerly and the CUDA graph checks are not applicable.
    """
    check_groups(groups)
    chosen = tuple(RENAMED_GROUPS.get(group, group) for group in groups) or tuple(GROUPS)
    target = Target.of(backend, depth, seed, cuda_graphs=cuda_graphs)
    lines: list[CheckLine] = []
    with torch.inference_mode():
        for number, group in enumerate(chosen):
            progress(Progress(group, number, len(chosen), len(lines)))
            for line in run_group(group, GROUPS[group], target):
                lines.append(line)
                progress(Progress(group, number, len(chosen), len(lines)))
    return Report(metadata_of(target, name, chosen), tuple(lines))


def run_group(group: str, check: Check, target: Target) -> Iterator[CheckLine]:
    """The lines of one group; an exception adds a failed line."""
    try:
        yield from check(target)
    except Exception as error:  # boundary: the other groups still run
        yield CheckLine(
            group=group,
            claim="all checks of this group complete",
            setting="",
            execution=ExecutionInfo(str(target.device), target.talker_format, 1, ""),
            comparison=failure(f"{type(error).__name__}: {error}"),
            tolerance=NO_FAILURE,
        )


def metadata_of(target: Target, name: str, groups: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Metadata needed to repeat the run. No date and no run time, so that reports of equal runs are equal."""
    config = target.model.config
    return (
        ("model", name),
        ("kind", f"{config.kind}, {config.size}"),
        ("device", device_name(target.device)),
        ("talker and code predictor", target.talker_format),
        ("codec", dtype_name(target.codec_dtype)),
        ("backend", description_of(target.backend, cuda_graphs=target.cuda_graphs)),
        ("depth", target.depth.name),
        ("groups", "all" if len(groups) == len(GROUPS) else ", ".join(groups)),
        ("seed", str(target.seed)),
        ("threads", str(torch.get_num_threads())),
        ("torch", torch.__version__),
        ("legato", __version__),
    )


def device_name(device: torch.device) -> str:
    """The device and the GPU or CPU features its kernels use."""
    if device.type == "cuda":
        return f"{device}: {torch.cuda.get_device_name(device)}"
    return f"{device}: {platform.machine()}, kernels for {torch.backends.cpu.get_cpu_capability()}"
