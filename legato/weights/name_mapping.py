"""Name mapping: which tensor of which file becomes which parameter of which module.

Below its prefix a parameter has the official name, with two exceptions: an RVQ codebook is stored as a running sum and
a usage count and becomes one `table`, and some official tensors are known to be unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from legato.config.model import CodecEncoderConfig
from legato.models.codec.quantizer import DECODER_UNUSED, encoder_unused

MAIN_FILE = "model.safetensors"

TALKER = "talker."
CODE_PREDICTOR = "talker.code_predictor."
SPEAKER_ENCODER = "speaker_encoder."
DURATIONS = "duration."
DECODER = "decoder."
ENCODER = "encoder."

BAKED = {
    "_codebook.table": ("_codebook.embedding_sum", "_codebook.cluster_usage"),
    ".codebook.table": (".codebook.embed_sum", ".codebook.cluster_usage"),
}
"""Suffix of a parameter name -> suffixes of the names of its sum and its usage count."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a parameter: one tensor, or a sum and a usage count that are divided into a table."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def baked(self) -> bool:
        return len(self.names) == 2


def sources(module: nn.Module, prefix: str) -> dict[str, Source]:
    """The source in the file of each parameter of `module`."""
    table: dict[str, Source] = {}
    for name, parameter in module.named_parameters():
        shape = tuple(parameter.shape)
        table[name] = Source((prefix + name,), (shape,))
        for end, (total, usage) in BAKED.items():
            if name.endswith(end):
                stem = prefix + name.removesuffix(end)
                table[name] = Source((stem + total, stem + usage), (shape, shape[:1]))
    return table


def unused_in_codec(encoder: CodecEncoderConfig | None, *, encoder_built: bool) -> Unused:
    """Unused tensors of the speech tokenizer; all of its encoder where that is not built."""
    names = {DECODER + name for name in DECODER_UNUSED}
    if encoder is not None and encoder_built:
        names |= {ENCODER + name for name in encoder_unused(encoder)}
    prefixes = (ENCODER,) if encoder is not None and not encoder_built else ()
    return Unused(frozenset(names), prefixes)


def unused_in_main(kind: str) -> Unused:
    """Unused tensors of the main file: a speaker encoder that fine-tuning left in a checkpoint with built-in voices."""
    return Unused(frozenset(), () if kind == "base" else (SPEAKER_ENCODER,))


@dataclass(frozen=True, slots=True)
class Unused:
    """Tensors that may be in a file and are not read."""

    names: frozenset[str]
    prefixes: tuple[str, ...]

    def __contains__(self, name: str) -> bool:
        return name in self.names or name.startswith(self.prefixes)


def faults(wanted: Iterable[Source], found: Mapping[str, tuple[int, ...]], unused: Unused) -> list[str]:
    """One line for every missing, unexpected and misshapen tensor, in that order."""
    missing: list[str] = []
    misshapen: list[str] = []
    known: set[str] = set()
    for source in wanted:
        for name, shape in zip(source.names, source.shapes, strict=True):
            known.add(name)
            if name not in found:
                missing.append(f"missing: {name} {list(shape)}")
            elif found[name] != shape:
                misshapen.append(f"misshapen: {name} is {list(found[name])}, must be {list(shape)}")
    left = [
        f"left over: {name} {list(shape)}" for name, shape in found.items() if name not in known and name not in unused
    ]
    return missing + sorted(left) + misshapen
