"""A checkpoint's folder -> modules with its weights: `load_model`.

Owns nothing after it returns. Files are mapped, modules are built without memory, and tensors are taken over one at a
time: one whose dtype is already right stays a view of the mapped file (which must then not be rewritten in place while
the model lives), any other is converted into memory of its own. So private memory peaks at the weights in their final
dtype and one tensor. Names are those of `names.py`; whatever does not fit them is in one `TensorError`.
Knows no engine.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from legato.config.checkpoint import read_model_config
from legato.config.codec_checkpoint import codec_location
from legato.config.model import ModelConfig, PhoneTextConfig
from legato.config.quantization import NONE
from legato.errors import StateError, TensorError, UnsupportedError
from legato.models import names
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.encoder import CodecEncoder
from legato.models.codec.quantizer import bake_codebook
from legato.models.codec.upsample import pass_idle_units
from legato.models.durations import DurationNet
from legato.models.invariance import BatchInvariant, batch_invariant
from legato.models.layers.quantized import Kernels
from legato.models.native.codec import compile_decoder
from legato.models.native.layers import NativeLayers, UnroundedLinear, join_steps, take_halves
from legato.models.native.library import Library, Missing, library
from legato.models.progress import Progress, ProgressCallback
from legato.models.quantize import KEPT, choose, noted, rounded_names, run_stores, stores
from legato.models.speaker import SpeakerEncoder
from legato.models.stored import STORED_BYTES, StoredTensors, weight_files
from legato.models.talker.backbone import Talker
from legato.models.unfilled import unfilled

__all__ = ["LoadedModel", "Progress", "ProgressCallback", "load_model"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WHOLE = ("I8", "U8")
"""Dtypes of the numbers of rounded weights; only a place that asks for whole numbers takes them."""
AS_STORED = frozenset(("model.text_embedding.weight",))
"""Parameters that keep the file's format, mapped: a table of 150,000 rows of which a text needs a few dozen."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights of one checkpoint, in evaluation mode and without gradients.

    `encoder` and `speaker_encoder` exist in Base checkpoints alone, `durations` in the embedded voice alone. Talker and
    predictor have one dtype, the codec another; RVQ tables, speaker encoder and duration net are always float32, and
    the text embedding is as in the file. `quant`: how talker and predictor are rounded; `quant_note`: that in words.
    `codec_note`: by what the decoder computes.
    """

    folder: Path
    config: ModelConfig
    talker: Talker
    code_predictor: CodePredictor
    decoder: CodecDecoder
    encoder: CodecEncoder | None
    speaker_encoder: SpeakerEncoder | None
    durations: DurationNet | None
    quant: str = NONE
    quant_note: str = ""
    codec_note: str = ""

    @property
    def cache_dtype(self) -> torch.dtype:
        """What keys and values are kept in: the talker's dtype, or bfloat16 where its weights are rounded anyway."""
        dtype = self.talker.codec_head.weight.dtype
        return dtype if self.quant == NONE else torch.bfloat16

    @property
    def batch_invariant(self) -> BatchInvariant:
        """Which of its parts give a row the same bits in any batch."""
        return batch_invariant(self.talker, self.code_predictor, self.decoder)


@dataclass(frozen=True, slots=True)
class _Part:
    """A module to fill: its place in the file, the dtype it computes in, and the names that keep the file's format.

    `halves` keep it where it is bfloat16.
    """

    prefix: str
    module: nn.Module
    dtype: torch.dtype
    kept: frozenset[str] = frozenset()
    halves: frozenset[str] = frozenset()


def load_model(
    folder: Path,
    *,
    talker_dtype: str = "float32",
    codec_dtype: str = "float32",
    device: str = "cpu",
    codec_folder: Path | None = None,
    quant: str = NONE,
    compiled: bool = True,
    progress: ProgressCallback | None = None,
) -> LoadedModel:
    """Load the checkpoint in `folder` (see `config.checkpoint` for where its speech tokenizer is looked for).

    `talker_dtype` serves the talker and the code predictor; both dtypes are "float32" or "bfloat16". `quant` rounds
    the weights of both (`models.quantize`); a checkpoint that is stored so needs no asking. Without `compiled` nothing
    is put in place of ordinary modules, for whoever takes them apart. Raises `CheckpointError`,
    `ConfigError` or `TensorError`, naming what is wrong, and `UnsupportedError` for another dtype or mode.
    """
    language_dtype, sound_dtype = _dtype("talker_dtype", talker_dtype), _dtype("codec_dtype", codec_dtype)
    folder = Path(folder)
    config = read_model_config(folder, codec_folder)
    kernels = Kernels.here()
    compiled = compiled and device.startswith("cpu")
    native = library() if compiled else Missing("")
    choice = choose(quant, config.quantization, device, kernels, compiled=isinstance(native, Library))
    with unfilled():
        talker = Talker(config.talker)
        predictor = CodePredictor(config.code_predictor, config.talker.stack.hidden_size)
        decoder = CodecDecoder(config.codec.decoder)
        speaker = SpeakerEncoder(config.speaker_encoder) if config.speaker_encoder is not None else None
        durations = _duration_net(config)
        encoder = None
        if config.kind == "base" and config.codec.encoder is not None:
            encoder = CodecEncoder(config.codec.encoder, config.codec.frame_samples)
        for language in (talker, predictor):
            if config.quantization != NONE:
                stores(language, config.quantization)
    rounded = choice.mode if config.quantization == NONE else NONE
    halves = isinstance(native, Library) and choice.mode == NONE
    main = [
        _language_part(names.TALKER, talker, language_dtype, rounded, halves=halves),
        _language_part(names.CODE_PREDICTOR, predictor, language_dtype, rounded, halves=halves),
    ]
    if speaker is not None:
        main.append(_Part(names.SPEAKER_ENCODER, speaker, torch.float32))
    if durations is not None:
        main.append(_Part(names.DURATIONS, durations, torch.float32))
    codec = [_Part(names.DECODER, decoder, sound_dtype)]
    if encoder is not None:
        codec.append(_Part(names.ENCODER, encoder, sound_dtype))
    _fill(main, folder, names.unused_in_main(config.kind), device, progress)
    unused = names.unused_in_codec(config.codec.encoder, encoder_built=encoder is not None)
    _fill(codec, codec_location(folder, codec_folder), unused, device, progress)
    pass_idle_units(decoder.decoder)
    codec_note = compile_decoder(decoder, device) if compiled else ""
    for language in (talker, predictor):
        _make_fast(language, rounded, kernels, language_dtype, native, halves=halves)
    _take_head(talker, native)
    notes = noted(choice, _in_use(talker, native)), codec_note
    return LoadedModel(folder, config, talker, predictor, decoder, encoder, speaker, durations, choice.mode, *notes)


def _in_use(talker: Talker, native: Library | Missing) -> Library | Missing:
    """The library if the layers are computed by it: maps that are stored in float32 and not rounded stay torch's."""
    return native if isinstance(native, Missing) or isinstance(talker.model.layers, NativeLayers) else Missing("")


def _make_fast(
    language: nn.Module,
    rounded: str,
    kernels: Kernels,
    dtype: torch.dtype,
    native: Library | Missing,
    *,
    halves: bool,
) -> None:
    """Put in place of filled maps and layers what multiplies them on this machine."""
    if rounded != NONE:
        stores(language, rounded)
    run_stores(language, kernels, dtype, native)
    if halves and isinstance(native, Library):
        take_halves(language, native, KEPT)
        join_steps(language, native)


def _take_head(talker: Talker, native: Library | Missing) -> None:
    """Replace the head of the first code, where it is float32 and the layers before it are compiled."""
    head = talker.codec_head
    if isinstance(native, Missing) or not isinstance(talker.model.layers, NativeLayers):
        return
    if head.weight.dtype == torch.float32 and head.weight.is_contiguous():
        setattr(talker, "codec_head", UnroundedLinear(head, native))  # noqa: B010


def _language_part(prefix: str, module: nn.Module, dtype: torch.dtype, rounded: str, *, halves: bool) -> _Part:
    """Talker or predictor. Weights that will be rounded, or are multiplied as they lie, are never converted first."""
    kept = {name for name, parameter in module.named_parameters() if not parameter.is_floating_point()}
    kept |= {name for name, _ in module.named_parameters() if name.endswith((".scales", ".affine"))}
    maps = rounded_names(module)
    kept |= maps if rounded != NONE else frozenset()
    return _Part(prefix, module, dtype, AS_STORED | kept, maps if halves else frozenset())


def _dtype(field: str, name: str) -> torch.dtype:
    if name == "float16":
        raise UnsupportedError(
            f"{field} float16 is refused: activations of the official weights exceed its largest value (65504) and "
            "become infinite; use bfloat16, which takes the same memory, or float32",
            field=field,
        )
    if name not in DTYPES:
        raise UnsupportedError(f"{field} must be one of {', '.join(DTYPES)}, not {name!r}", field=field)
    return DTYPES[name]


def _duration_net(config: ModelConfig) -> DurationNet | None:
    text = config.talker.text
    if not isinstance(text, PhoneTextConfig):
        return None
    return DurationNet(
        phones=len(text.phones),
        speakers=len(config.talker.speakers),
        sizes=text.duration,
        look_ahead=text.look_ahead_phones,
    )


# --- filling ---------------------------------------------------------------------------------------------------------


def _fill(
    parts: list[_Part], folder: Path, unused: names.Unused, device: str, progress: ProgressCallback | None
) -> None:
    """Give every parameter of `parts` its tensor from the files of `folder`, after checking all names and shapes."""
    with ExitStack() as stack:
        tensors = StoredTensors(stack, weight_files(folder))
        wanted = [(part, names.sources(part.module, part.prefix)) for part in parts]
        wrong = names.faults((source for _, table in wanted for source in table.values()), tensors.shapes, unused)
        wrong += _undecodable(wanted, tensors)
        if wrong:
            raise TensorError(f"{folder} does not hold the tensors of its config.json:\n  " + "\n  ".join(wrong))
        total = sum(tensors.bytes(source) for _, table in wanted for source in table.values())
        done = 0
        for part, table in wanted:
            for name, source in table.items():
                stays = name in part.kept or (name in part.halves and tensors.stored[source.names[0]] == "BF16")
                dtype = None if stays else part.dtype
                wanted_order = part.module.get_parameter(name).stride()
                _assign(part.module, name, _ordered(_converted(tensors, source, dtype, device), wanted_order))
                done += tensors.bytes(source)
                if progress is not None:
                    progress(Progress("load", part.prefix.rstrip("."), done, total))
            _finish(part.module)


def _undecodable(wanted: list[tuple[_Part, dict[str, names.Source]]], tensors: StoredTensors) -> list[str]:
    return [
        f"stored as {tensors.stored[name]}: {name} (this engine reads {', '.join(_readable(part, parameter))} here)"
        for part, table in wanted
        for parameter, source in table.items()
        for name in source.names
        if name in tensors.stored and tensors.stored[name] not in _readable(part, parameter)
    ]


def _readable(part: _Part, parameter: str) -> list[str]:
    whole = not part.module.get_parameter(parameter).is_floating_point()
    return [dtype for dtype in STORED_BYTES if (dtype in WHOLE) == whole]


def _converted(tensors: StoredTensors, source: names.Source, dtype: torch.dtype | None, device: str) -> Tensor:
    if source.baked:
        total, usage = (tensors.read(name) for name in source.names)
        return bake_codebook(total, usage).to(device)
    return tensors.read(source.names[0]).to(device=device, dtype=dtype)


def _ordered(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The tensor in the memory order that its module asks for: a product reads a convolution's weight as a matrix."""
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _assign(module: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    module.get_submodule(path).register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))


def _finish(module: nn.Module) -> None:
    """A constant that was made on the meta device would be garbage: modules compute theirs when they are called."""
    ghosts = [name for name, tensor in (*module.named_parameters(), *module.named_buffers()) if tensor.is_meta]
    if ghosts:
        raise StateError(f"{type(module).__name__} has tensors that no file fills: {', '.join(ghosts)}")
    module.eval()
