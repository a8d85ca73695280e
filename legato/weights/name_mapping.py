"""Name mapping between the tensors of checkpoint files and the parameters of modules.

After its prefix, a parameter has its official name, with two exceptions: an RVQ codebook is stored as a running sum and
usage counts and becomes one `table`, and some official tensors are not used.
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

CODEBOOK_TABLES = {
    "_codebook.table": ("_codebook.embedding_sum", "_codebook.cluster_usage"),
    ".codebook.table": (".codebook.embed_sum", ".codebook.cluster_usage"),
}
"""Suffix of a parameter's name -> suffixes of the names of its running sum and usage counts."""


@dataclass(frozen=True, slots=True)
class Source:
    """The tensors of a parameter in the file: one, or the running sum and usage counts of a codebook table."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def is_codebook(self) -> bool:
        """True for a codebook table."""
        return len(self.names) == 2


def sources(module: nn.Module, prefix: str) -> dict[str, Source]:
    """The source of each parameter of `module`, by parameter name."""
    table: dict[str, Source] = {}
    for name, parameter in module.named_parameters():
        shape = tuple(parameter.shape)
        table[name] = Source((prefix + name,), (shape,))
        for end, (total, usage) in CODEBOOK_TABLES.items():
            if name.endswith(end):
                stem = prefix + name.removesuffix(end)
                table[name] = Source((stem + total, stem + usage), (shape, shape[:1]))
    return table


def unused_in_codec(encoder: CodecEncoderConfig | None, *, encoder_built: bool) -> Unused:
    """Unused tensors of the speech tokenizer; the whole encoder if it is not built."""
    names = {DECODER + name for name in DECODER_UNUSED}
    if encoder is not None and encoder_built:
        names |= {ENCODER + name for name in encoder_unused(encoder)}
    prefixes = (ENCODER,) if encoder is not None and not encoder_built else ()
    return Unused(frozenset(names), prefixes)


def unused_in_main(kind: str) -> Unused:
    """Unused tensors of the main file: fine-tuning may leave a speaker encoder in a model with built-in voices."""
    return Unused(frozenset(), () if kind == "base" else (SPEAKER_ENCODER,))


@dataclass(frozen=True, slots=True)
class Unused:
    """Tensors that a file may contain and that are not loaded."""

    names: frozenset[str]
    prefixes: tuple[str, ...]

    def __contains__(self, name: str) -> bool:
        return name in self.names or name.startswith(self.prefixes)


def mismatches(wanted: Iterable[Source], found: Mapping[str, tuple[int, ...]], unused: Unused) -> list[str]:
    """One line for each missing tensor, unexpected tensor and wrong shape, in this order."""
    missing: list[str] = []
    wrong_shapes: list[str] = []
    known: set[str] = set()
    for source in wanted:
        for name, shape in zip(source.names, source.shapes, strict=True):
            known.add(name)
            if name not in found:
                missing.append(f"missing: {name} {list(shape)}")
            elif found[name] != shape:
                wrong_shapes.append(f"wrong shape: {name} is {list(found[name])}, must be {list(shape)}")
    unexpected = [
        f"unexpected: {name} {list(shape)}" for name, shape in found.items() if name not in known and name not in unused
    ]
    return missing + sorted(unexpected) + wrong_shapes
