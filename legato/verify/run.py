"""All groups of checks over one model, in order, with progress told to the caller. The model is loaded by the caller.

A check that breaks is a failed line, not a broken run: the report then says where. Owns the list of groups.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from legato import __version__
from legato.engine.notes import computed_by
from legato.errors import InputError
from legato.models.load import LoadedModel
from legato.verify import (
    cancel,
    codec,
    codec_layers,
    company,
    convolution,
    predictor,
    recorded,
    reuse,
    streamed,
    talker,
    voices,
)
from legato.verify.compare import failure
from legato.verify.lines import CheckLine, Tally, Where, tally
from legato.verify.subject import FULL, Depth, Subject, dtype_name
from legato.verify.tolerance import NO_FAILURE

Check = Callable[[Subject], Iterable[CheckLine]]

GROUPS: dict[str, Check] = {
    convolution.GROUP: lambda subject: convolution.check_convolution(subject.device),
    codec_layers.GROUP: codec_layers.check_codec_layers,
    codec.GROUP: codec.check_codec,
    talker.GROUP: talker.check_talker,
    predictor.GROUP: predictor.check_predictor,
    recorded.GROUP: recorded.check_recorded,
    company.GROUP: company.check_company,
    cancel.GROUP: cancel.check_cancel,
    reuse.GROUP: reuse.check_reuse,
    streamed.GROUP: streamed.check_streamed,
    voices.GROUP: voices.check_voices,
}


@dataclass(frozen=True, slots=True)
class Progress:
    """Group number `number` of `groups` has given `lines` lines so far."""

    group: str
    number: int
    groups: int
    lines: int


@dataclass(frozen=True, slots=True)
class Report:
    """All lines of a run, and what was run on what: names and values in order."""

    facts: tuple[tuple[str, str], ...]
    lines: tuple[CheckLine, ...]

    @property
    def tally(self) -> Tally:
        return tally(self.lines)

    @property
    def passed(self) -> bool:
        return self.tally.passed


def check_groups(groups: Sequence[str]) -> None:
    """Refuse a group that does not exist, before anything is loaded."""
    for group in groups:
        if group not in GROUPS:
            raise InputError(f"there is no group {group!r}; there are: {', '.join(GROUPS)}", field="group")


def verify_model(
    model: LoadedModel,
    *,
    name: str,
    depth: Depth = FULL,
    seed: int = 0,
    progress: Callable[[Progress], None] = lambda _progress: None,
    groups: Sequence[str] = (),
    graphs: bool = True,
) -> Report:
    """Run the checks on `model`, which is called `name` in the report; all groups where none is chosen.

    Without `graphs` nothing is recorded on CUDA, neither in engines nor to be checked.
    """
    check_groups(groups)
    chosen = groups or tuple(GROUPS)
    subject = Subject.of(model, depth, seed, graphs=graphs)
    lines: list[CheckLine] = []
    with torch.inference_mode():
        for number, group in enumerate(chosen):
            progress(Progress(group, number, len(chosen), len(lines)))
            for line in run_group(group, GROUPS[group], subject):
                lines.append(line)
                progress(Progress(group, number, len(chosen), len(lines)))
    return Report(facts_of(subject, name, chosen), tuple(lines))


def run_group(group: str, check: Check, subject: Subject) -> Iterator[CheckLine]:
    """The lines of one group; if it breaks, a line that says how."""
    try:
        yield from check(subject)
    except Exception as error:  # boundary: a broken check is a failed line, and the other groups still run
        broken = failure(f"{type(error).__name__}: {error}")
        where = Where(str(subject.device), subject.language_format, 1, "")
        yield CheckLine(group, "the checks of this group run to their end", "", where, broken, NO_FAILURE)


def facts_of(subject: Subject, name: str, groups: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """What a reader needs to repeat the run. No time and no date: this is no place for speed."""
    config = subject.model.config
    return (
        ("model", name),
        ("kind", f"{config.kind}, {config.size}"),
        ("device", device_name(subject.device)),
        ("talker and code predictor", subject.language_format),
        ("codec", dtype_name(subject.codec_dtype)),
        ("computed by", computed_by(subject.model, graphs=subject.graphs)),
        ("depth", subject.depth.name),
        ("groups", "all" if len(groups) == len(GROUPS) else ", ".join(groups)),
        ("seed", str(subject.seed)),
        ("threads", str(torch.get_num_threads())),
        ("torch", torch.__version__),
        ("legato", __version__),
    )


def device_name(device: torch.device) -> str:
    """The device and what its kernels are made for."""
    if device.type == "cuda":
        return f"{device}: {torch.cuda.get_device_name(device)}"
    return f"{device}: {platform.machine()}, kernels for {torch.backends.cpu.get_cpu_capability()}"
