"""Quantized talkers and predictors: selected kernels, cache and batch invariance, and stored checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from legato.backends.base import Backend, FrameInputs
from legato.backends.cpu.backend import CpuBackend
from legato.backends.cpu.lm import NativeInt4Linear, NativeInt8Linear, NativeLayers, NativeLinear
from legato.backends.select import has_fast_int8, load_backend
from legato.backends.torch import TorchBackend
from legato.backends.torch_quantized import TorchInt4Linear, TorchInt8Linear, TorchKernels
from legato.config.checkpoint import read_model_config
from legato.errors import ConfigError, InputError, TensorError, UnsupportedError
from legato.kernels.build import Unavailable
from legato.kernels.codec_library import codec_library
from legato.kernels.library import Library, library
from legato.models.code_predictor.predict import frame_logits_uncached
from legato.models.sampling import Sampled, SamplingRows
from legato.models.talker.state import KVRows, TalkerCache, poison
from legato.types import SamplingParams
from legato.weights.loading import load_model
from legato.weights.quantization import choose_quantization, dequantized_copy
from legato.weights.quantized_checkpoint import write_quantized
from legato.weights.quantized_linear import Int4Linear, Int8Linear
from tests.conftest import TinyCheckpoint
from tests.kernels.older_cpus import NARROWEST

VNNI = TorchKernels(int8=True, vnni=True, int4=True)
AVX2 = TorchKernels(int8=True, vnni=False, int4=True)
ARM = TorchKernels(int8=False, vnni=False, int4=False)
WARM = SamplingParams(
    temperature=0.9,
    top_k=50,
    top_p=1.0,
    repetition_penalty=1.05,
    predictor_temperature=0.9,
    predictor_top_k=20,
    predictor_top_p=0.95,
)
FORMS = ("native", "native int4", "native, narrow", "torch", "int4", "no kernels")
POSITIONS = 9


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """The implementations of quantized linears; those that this machine lacks are skipped with a reason."""
    name: str = request.param
    if name.startswith("native") and isinstance(native_library(name), Unavailable):
        pytest.skip(f"no CPU kernels here: {native_library(name)}")
    if name in ("torch", "int4") and not TorchKernels.detect().int8:
        pytest.skip("PyTorch has no fast int8 kernels for this CPU")
    return name


def native_library(form: str) -> Library | Unavailable:
    """For this CPU, or for the oldest supported one, with narrow vectors."""
    return library(NARROWEST) if "narrow" in form else library()


def quantized(form: str, folder: Path) -> Backend:
    """A tiny quantized model on one of the implementations."""
    model = load_model(folder, quant="int4" if "int4" in form else "int8")
    if form.startswith("native"):
        return CpuBackend(model, native_library(form), codec_library())
    return TorchBackend(model, kernels=ARM if form == "no kernels" else None)


@pytest.fixture(scope="module")
def model(form: str, tiny_checkpoint: TinyCheckpoint) -> Backend:
    return quantized(form, tiny_checkpoint("tiny-custom-voice"))


def inputs(model: Backend, rows: int = 3) -> Tensor:
    width = model.model.config.talker.stack.hidden_size
    return torch.randn(rows, POSITIONS, width, generator=torch.Generator().manual_seed(5))


def cached(model: Backend, x: Tensor, slots: list[int], cuts: list[int]) -> Tensor:
    """Hidden states of `x` in slices that end at `cuts`, in `slots` of a cache full of NaN."""
    cache = TalkerCache.allocate(model.model.config.talker.stack, 5, POSITIONS, model.model.cache_dtype)
    poison(cache, KVRows.of(range(5)))
    parts, start = [], 0
    with torch.inference_mode():
        for end in cuts:
            starts = torch.full((x.shape[0],), start)
            parts.append(model.talker.forward_all(cache, KVRows.of(slots), x[:, start:end], starts))
            start = end
    return torch.cat(parts, dim=1)


def share(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


def test_expected_implementation_is_used(form: str, model: Backend) -> None:
    kinds = {type(part) for part in model.talker.modules()}
    wanted = {
        "native": NativeInt8Linear,
        "native int4": NativeInt4Linear,
        "native, narrow": NativeInt8Linear,
        "torch": TorchInt8Linear,
        "int4": TorchInt4Linear,
        "no kernels": torch.nn.Linear,
    }[form]
    assert wanted in kinds
    assert (NativeLayers in kinds) == form.startswith("native")
    assert model.model.quant == ("int4" if "int4" in form else "int8")
    assert model.model.quant in model.model.quant_note
    assert ("no fast" in model.description[0]) == (form == "no kernels")
    head = model.talker.codec_head
    assert isinstance(head, NativeLinear if form.startswith("native") else torch.nn.Linear)
    assert head.weight.dtype == torch.float32


def test_backend_does_not_change_the_reference_modules(form: str, model: Backend) -> None:
    """The reference modules keep their quantized linears, and their results are close."""
    kinds = {type(part) for part in model.model.talker.modules()}
    assert Int4Linear in kinds if "int4" in form else Int8Linear in kinds
    assert not kinds & {NativeInt8Linear, NativeInt4Linear, TorchInt8Linear, TorchInt4Linear, NativeLayers}
    x = inputs(model)
    with torch.inference_mode():
        assert share(model.talker.forward_uncached(x), model.model.talker.forward_uncached(x)) < 0.1


def test_cached_equals_uncached_within_the_quantization_error(model: Backend) -> None:
    """Control: without its past, the result differs by much more."""
    x = inputs(model)
    with torch.inference_mode():
        whole, exact = model.talker.forward_uncached(x), dequantized_copy(model.model.talker).forward_uncached(x)
        alone = model.talker.forward_uncached(x[:, -1:])
    got = cached(model, x, [3, 0, 4], [4, 5, 6, 7, 8, 9])
    cost = max(share(whole, exact), 2**-7)
    assert share(got, whole) < 3 * cost < 0.2
    assert share(alone[:, 0], whole[:, -1]) > 0.3


def test_rows_and_slices_are_independent(form: str, model: Backend) -> None:
    """Native kernels: bit-identical. Otherwise torch's attention may sum in another order."""
    x = inputs(model)
    together = cached(model, x, [3, 0, 4], list(range(1, POSITIONS + 1)))
    alone = torch.cat([cached(model, x[row : row + 1], [2], list(range(1, POSITIONS + 1))) for row in range(3)])
    assert share(together, alone) < 0.05
    assert share(together.roll(1, 0), alone) > 0.3
    if form.startswith("native"):
        assert torch.equal(together, alone)
        assert torch.equal(cached(model, x, [3, 0, 4], [4, POSITIONS]), alone)


def test_padding_writes_nothing(model: Backend) -> None:
    x, rows = inputs(model), KVRows.of([3, 0, 4])
    ragged = torch.full((3, 5, x.shape[2]), float("nan"))
    ragged[0, :5], ragged[1, :2] = x[0, :5], x[1, :2]
    cache = TalkerCache.allocate(model.model.config.talker.stack, 5, POSITIONS, model.model.cache_dtype)
    poison(cache, KVRows.of(range(5)))
    before = cache.keys.clone()
    with torch.inference_mode():
        hidden = model.talker(cache, rows, ragged, torch.zeros(3, dtype=torch.int64), torch.tensor([5, 2, 0]))
    alone = cached(model, x, [3, 0, 4], [5])
    assert share(hidden[:2], torch.stack((alone[0, 4], alone[1, 1]))) < 0.05
    assert torch.equal(cache.keys[:, 0, :, 2:].isnan(), before[:, 0, :, 2:].isnan())
    assert cache.keys[:, 4].isnan().all()


def frames(model: Backend, hidden: Tensor) -> Sampled:
    B, Q = len(hidden), model.model.config.talker.num_codebooks
    source = torch.Generator().manual_seed(6)
    first = torch.randint(0, model.model.config.code_predictor.codebook_size, (8,), generator=source)[:B]
    noise = torch.rand(8, Q, dtype=torch.float64, generator=source)[:B]
    settings = SamplingRows.of([WARM] * B).residual
    with torch.inference_mode():
        return model.predict_frame(
            FrameInputs(
                hidden=hidden,
                first_code=first,
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                noise=noise,
            )
        )


def test_batched_frames_equal_single_rows(form: str, model: Backend) -> None:
    hidden = torch.randn(8, model.model.config.talker.stack.hidden_size, generator=torch.Generator().manual_seed(7))
    together, one = frames(model, hidden).codes, frames(model, hidden[:1]).codes
    agreement = float((together[:1] == one).float().mean())
    assert agreement == 1.0 or not form.startswith("native")
    assert len({tuple(row) for row in together.tolist()}) == 8
    broken = hidden.clone()
    broken[2] = float("nan")
    drawn = frames(model, broken)
    assert drawn.finite.tolist() == [row != 2 for row in range(8)]


def test_frame_logits_are_close_to_those_of_dequantized_weights(model: Backend) -> None:
    hidden = torch.randn(8, model.model.config.talker.stack.hidden_size, generator=torch.Generator().manual_seed(7))
    codes, embedding = frames(model, hidden).codes, model.talker.model.codec_embedding
    with torch.inference_mode():
        whole = frame_logits_uncached(model.code_predictor, embedding, hidden, codes)
        exact = frame_logits_uncached(dequantized_copy(model.model.code_predictor), embedding, hidden, codes)
    assert share(whole, exact) < 0.1
    assert share(whole.roll(1, 0), exact) > 0.3


# --- choice of a mode -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "stored", "device", "fast_int8", "mode", "note"),
    [
        ("none", "none", "cpu", True, "none", ""),
        ("auto", "none", "cpu", True, "int8", "half the memory bandwidth"),
        ("auto", "none", "cpu", False, "none", "no fast int8 kernels"),
        ("auto", "none", "cuda", True, "none", "on the CPU only"),
        ("int8", "none", "cpu", False, "int8", "quant int8"),
        ("int4", "none", "cpu", False, "int4", "quant int4"),
        ("none", "int8", "cpu", True, "int8", "as stored"),
        ("auto", "int4", "cpu", True, "int4", "as stored"),
    ],
)
def test_mode_depends_on_the_machine(
    asked: str, stored: str, device: str, fast_int8: bool, mode: str, note: str
) -> None:
    choice = choose_quantization(asked, stored, device, fast_int8=fast_int8)
    assert choice.mode == mode
    assert note in choice.note
    assert bool(choice.note) == (note != "")


def test_auto_depends_on_fast_int8() -> None:
    native = not isinstance(library(), Unavailable)
    assert has_fast_int8() == (native or TorchKernels.detect().int8)


def test_seven_bit_activations_are_noted(tiny_checkpoint: TinyCheckpoint) -> None:
    model = load_model(tiny_checkpoint("tiny-custom-voice"), quant="int8")
    assert "7 bits" in TorchBackend(model, kernels=AVX2).description[0]
    assert "7 bits" not in TorchBackend(model, kernels=VNNI).description[0]


@pytest.mark.parametrize(
    ("asked", "stored", "device", "message"),
    [
        ("int5", "none", "cpu", "use none, int8, int4, auto"),
        ("int8", "none", "cuda", "on the CPU only"),
        ("int4", "int8", "cpu", "quantize the original"),
    ],
)
def test_unavailable_mode_is_refused(asked: str, stored: str, device: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        choose_quantization(asked, stored, device, fast_int8=True)
    assert caught.value.field == "quant"


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("like", ["tiny-base", "tiny-custom-voice", "tiny-embedded"])
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_stored_checkpoint_equals_quantization_at_load(
    like: str, mode: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    source, folder = tiny_checkpoint(like), tmp_path / "out"
    written = write_quantized(source, folder, mode)
    assert written < sum(path.stat().st_size for path in source.glob("*.safetensors"))
    assert read_model_config(folder).quantization == mode
    stored, fresh = load_backend(folder), load_backend(source, quant=mode)
    assert (stored.model.quant, fresh.model.quant) == (mode, mode)
    x = inputs(stored, 1)
    with torch.inference_mode():
        assert torch.equal(stored.talker.forward_uncached(x), fresh.talker.forward_uncached(x))
    hidden = x[0, :4]
    assert torch.equal(frames(stored, hidden).codes, frames(fresh, hidden).codes)
    for path in source.iterdir():
        assert (folder / path.name).exists()


def test_quantized_checkpoint_cannot_be_quantized_again(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    write_quantized(tiny_checkpoint("tiny-embedded"), tmp_path / "once", "int8")
    with pytest.raises(UnsupportedError, match="already"):
        write_quantized(tmp_path / "once", tmp_path / "twice", "int8")
    with pytest.raises(InputError, match="not empty"):
        write_quantized(tiny_checkpoint("tiny-embedded"), tmp_path / "once", "int8")
    with pytest.raises(UnsupportedError, match="int8 or int4"):
        write_quantized(tiny_checkpoint("tiny-embedded"), tmp_path / "third", "none")


def test_files_that_do_not_match_their_config_are_refused(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_quantized(tiny_checkpoint("tiny-embedded"), folder, "int8")
    settings = json.loads((folder / "config.json").read_text())
    for value, error, said in (
        ({"quant_method": "legato", "mode": "int4"}, TensorError, "affine"),
        ({"quant_method": "legato", "mode": "int2"}, ConfigError, "mode"),
        ({"quant_method": "gptq", "mode": "int4"}, ConfigError, "quant_method"),
        (None, TensorError, "missing: talker.model.layers.0.self_attn.q_proj.weight"),
    ):
        (folder / "config.json").write_text(json.dumps({**settings, "quantization_config": value}))
        with pytest.raises(error, match=said):
            load_model(folder)


def test_text_embedding_keeps_the_dtype_of_the_file(tiny_checkpoint: TinyCheckpoint) -> None:
    """It is a view of the file for every compute dtype."""
    folder = tiny_checkpoint("tiny-custom-voice")
    model = load_model(folder)
    table = model.talker.model.text_embedding.weight
    assert table.dtype == torch.bfloat16
    with safe_open(str(folder / "model.safetensors"), framework="pt") as reader:
        assert torch.equal(table, reader.get_tensor("talker.model.text_embedding.weight"))
    assert model.talker.embed_text(torch.tensor([[3]])).dtype == torch.float32
