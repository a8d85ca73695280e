"""Weights that a backend executes from a copy of its own are not held a second time in the reference modules."""

from __future__ import annotations

import ctypes
import gc
import sys

import pytest
import torch
from torch import Tensor, nn

from legato.backends.select import build_backend, load_backend, return_freed_memory
from legato.backends.torch import TorchBackend
from legato.backends.torch_quantized import TorchInt8Linear, TorchKernels
from legato.errors import StateError
from legato.kernels.build import Unavailable
from legato.kernels.codec_library import codec_library
from legato.kernels.library import library
from legato.verify.target import QUICK, Target
from legato.weights.loading import LoadedModel, load_model
from tests.conftest import TinyCheckpoint
from tests.weights.measure_load import private_bytes

KIND = "tiny-base"
NATIVE = pytest.mark.skipif(
    isinstance(library(), Unavailable) or isinstance(codec_library(), Unavailable), reason="no CPU kernels here"
)


def held_bytes() -> int:
    """Bytes of all tensor storages in this process."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter) and not each.is_meta]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(storages.values())


def released_bytes(module: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in module.parameters() if each.is_meta)


def packed_bytes(decoder: nn.Module) -> int:
    """Bytes of the weights that the kernels pack: all but the codebook tables."""
    named = decoder.named_parameters()
    return sum(each.numel() * each.element_size() for name, each in named if not name.endswith(".table"))


def codec_samples(backend: TorchBackend) -> Tensor:
    config = backend.decoder.config
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(config.codebook_size, (2, 9, config.num_quantizers), generator=generator)
    with torch.inference_mode():
        return backend.decode_codec(backend.decoder.initial_history(2), codes, None)[0]


def hidden_states(backend: TorchBackend) -> Tensor:
    width = backend.model.config.talker.stack.hidden_size
    x = torch.randn(2, 7, width, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return backend.talker.forward_uncached(x)


@NATIVE
@pytest.mark.parametrize("quant", ["none", "int8"])
def test_packed_codec_weights_are_held_once(quant: str, tiny_checkpoint: TinyCheckpoint) -> None:
    """The reference weights of a bfloat16 codec are converted copies, so they would take as much as the packed ones."""
    folder, before = tiny_checkpoint(KIND), held_bytes()
    kept = load_backend(folder, quant=quant, codec_dtype="bfloat16", keep_reference=True)
    with_reference = held_bytes() - before
    assert not released_bytes(kept.model.decoder)
    del kept
    assert held_bytes() - before < with_reference / 10  # the measurement sees that storages are freed
    before = held_bytes()
    backend = load_backend(folder, quant=quant, codec_dtype="bfloat16")
    released = released_bytes(backend.model.decoder)
    assert released > 0.8 * packed_bytes(backend.model.decoder)
    assert held_bytes() - before <= with_reference - released


@NATIVE
@pytest.mark.parametrize("codec_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("quant", ["none", "int8", "int4"])
def test_release_changes_no_output(quant: str, codec_dtype: str, tiny_checkpoint: TinyCheckpoint) -> None:
    model = load_model(tiny_checkpoint(KIND), codec_dtype=codec_dtype, quant=quant)
    backend = build_backend(model)
    samples, hidden = codec_samples(backend), hidden_states(backend)
    backend.release_replaced_weights()
    del model
    gc.collect()
    overwritten = [torch.full((1 << 18,), float("nan")) for _ in range(32)]  # reuses freed memory
    assert torch.equal(codec_samples(backend), samples)
    assert torch.equal(hidden_states(backend), hidden)
    del overwritten
    assert backend.model.device == torch.device("cpu")
    assert backend.model.decoder.dtype == getattr(torch, codec_dtype)


def test_torch_kernels_hold_int8_weights_once(tiny_checkpoint: TinyCheckpoint) -> None:
    kernels = TorchKernels.detect()
    if not kernels.int8:
        pytest.skip("PyTorch has no int8 kernels for this CPU")
    backend = TorchBackend(load_model(tiny_checkpoint(KIND), quant="int8"), kernels=kernels)
    hidden = hidden_states(backend)
    backend.release_replaced_weights()
    assert any(isinstance(part, TorchInt8Linear) for part in backend.talker.modules())
    quantized = [each for each in backend.model.talker.parameters() if each.dtype == torch.int8]
    assert quantized
    assert all(each.is_meta for each in quantized)
    assert torch.equal(hidden_states(backend), hidden)


def test_executed_reference_modules_keep_their_weights(tiny_checkpoint: TinyCheckpoint) -> None:
    """Without kernels the codec is executed by the reference modules. Encoders for cloning have no packed form."""
    backend = build_backend(load_model(tiny_checkpoint(KIND)), native=False)
    backend.release_replaced_weights()
    model: LoadedModel = backend.model
    assert model.encoder is not None
    assert model.speaker_encoder is not None
    for module in (model.decoder, model.encoder, model.speaker_encoder):
        assert not released_bytes(module)


@NATIVE
def test_verification_refuses_released_weights(tiny_checkpoint: TinyCheckpoint) -> None:
    with pytest.raises(StateError, match="keep_reference=True"):
        Target.of(load_backend(tiny_checkpoint(KIND), codec_dtype="bfloat16"), QUICK, seed=0)
    Target.of(load_backend(tiny_checkpoint(KIND), codec_dtype="bfloat16", keep_reference=True), QUICK, seed=0)


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="the C library cannot trim its heap",
)
def test_holes_in_the_heap_are_returned_to_the_system() -> None:
    """Blocks of 100 kB come from the heap. The last one stays in use, so freeing the others leaves holes."""
    blocks = [torch.ones(25_000) for _ in range(1000)]
    full = private_bytes()
    del blocks[:-1]
    holes = private_bytes()
    return_freed_memory()
    assert full - holes < 20_000_000
    assert holes - private_bytes() > 80_000_000
