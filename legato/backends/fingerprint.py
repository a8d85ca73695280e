"""The numerics fingerprint: everything that determines the bits of a backend's results, as one frozen value.

The same request with the same seed gives the same codes under one fingerprint, whatever the number of threads, the
process or the machine; with `batch_invariant` also for any batch. With `window_invariant` the samples are equal for any
codec windows, else within the limits of docs/exactness.md. Between fingerprints agreement is measured, not promised.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass

import torch

from legato import __version__
from legato.backends.base import Backend
from legato.backends.cpu.lm import NativeLayers
from legato.config.cpus import cpu_name_and_flags, kernel_instructions
from legato.weights.checkpoint_digest import checkpoint_digest

DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class NumericsFingerprint:
    """Settings in effect, after "auto" was resolved.

    `checkpoint`: SHA-256 of its files (`weights.checkpoint_digest`). `backend`: `Backend.name`. `instructions`: the
    instruction sets that the kernels use, or the GPU. `language_kernels`, `codec_kernels`: "native" or "torch" with its
    version. The dtypes are those of talker and code predictor, of the codec, and of the KV cache.
    """

    checkpoint: str
    legato: str
    backend: str
    instructions: str
    language_kernels: str
    codec_kernels: str
    language_dtype: str
    codec_dtype: str
    cache_dtype: str
    quantization: str
    batch_invariant: bool
    window_invariant: bool

    @property
    def digest(self) -> str:
        """The short form: 16 hexadecimal digits. Equal exactly if all fields are equal."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]

    def __str__(self) -> str:
        return self.digest

    def differences(self, other: NumericsFingerprint) -> tuple[str, ...]:
        """Names of the fields that differ."""
        mine, theirs = asdict(self), asdict(other)
        return tuple(name for name in mine if mine[name] != theirs[name])

    def to_json(self) -> dict[str, str | bool]:
        """The digest and all fields."""
        return {"digest": self.digest, **asdict(self)}


def numerics_fingerprint(
    backend: Backend, *, batch_invariant: bool | None = None, cuda_graphs: bool = False
) -> NumericsFingerprint:
    """The fingerprint of `backend`. Reads the checkpoint's files, which takes about a second per GiB.

    `batch_invariant`: whether the engine makes results independent of the batch by other means, such as batch size 1;
    None means the guarantee of the backend itself. `cuda_graphs`: an engine on CUDA captures this backend as graphs.
    """
    model, guarantees = backend.model, backend.batch_invariance
    native_layers = isinstance(backend.talker.model.layers, NativeLayers)
    return NumericsFingerprint(
        checkpoint=checkpoint_digest(model.folder),
        legato=__version__,
        backend="cuda_graphs" if cuda_graphs and model.device.type == "cuda" else backend.name,
        instructions=_instructions(backend),
        language_kernels=_kernels(native=native_layers),
        codec_kernels=_kernels(native=guarantees.codec),
        language_dtype=_name(model.language_dtype),
        codec_dtype=_name(model.decoder.dtype),
        cache_dtype=_name(model.cache_dtype),
        quantization=model.quant,
        batch_invariant=guarantees.complete if batch_invariant is None else batch_invariant,
        window_invariant=guarantees.codec,
    )


def _instructions(backend: Backend) -> str:
    device = backend.model.device
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"{torch.cuda.get_device_name(device)} (sm_{major}{minor}), CUDA {torch.version.cuda}"
    _, flags = cpu_name_and_flags()
    native, by_torch = kernel_instructions(flags, platform.machine()), torch.backends.cpu.get_cpu_capability()
    return f"native {native or 'generic'}, torch {by_torch}"


def _kernels(*, native: bool) -> str:
    return "native" if native else f"torch {torch.__version__}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
