"""Load a checkpoint folder into reference modules: `load_model`. No engine, no kernels.

The files are memory-mapped, modules are built on the meta device, and tensors are assigned one at a time. A tensor with
the right dtype stays a view of the mapped file, so the file must not be modified in place while the model is in use.
Other tensors are converted into new memory. Peak private memory is therefore the converted weights plus one tensor.
Tensor names are mapped by `name_mapping`; one `TensorError` lists all mismatches.
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
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.codec.decoder import CodecDecoder
from legato.models.codec.encoder import CodecEncoder
from legato.models.codec.quantizer import codebook_table
from legato.models.codec.upsample import remove_identity_units
from legato.models.durations import DurationNet
from legato.models.speaker import SpeakerEncoder
from legato.models.talker.backbone import Talker
from legato.weights import name_mapping as names
from legato.weights.meta_init import empty_modules
from legato.weights.progress import Progress, ProgressCallback
from legato.weights.quantization import QuantChoice, choose_quantization, is_large, quantize_modules, quantized_names
from legato.weights.safetensors_reader import STORED_BYTES, StoredTensors, weight_files
from legato.weights.size_check import check_codec_sizes, check_main_sizes

__all__ = ["LoadedModel", "Progress", "ProgressCallback", "load_model"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
INTEGER = ("I8", "U8")
"""Stored dtypes of quantized weights; they are loaded into integer parameters only."""
AS_STORED = frozenset(("model.text_embedding.weight",))
"""Parameters that stay mapped in the file's dtype: a text uses a few dozen of the 150,000 rows of this table."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The weights of one checkpoint as reference modules, in evaluation mode and without gradients.

    `encoder` and `speaker_encoder` exist in Base checkpoints only, `durations` in the embedded voice only. Talker and
    predictor compute in `language_dtype`, the codec in its own dtype; codebook tables, speaker encoder and duration
    predictor are always float32. Linears of talker and predictor that are stored in bfloat16 keep this dtype if they
    compute in float32 (see `models.layers.linear`), and the text embedding keeps the dtype of the file. `quant`: the
    quantization of talker and predictor. `quant_note`: why it was chosen; "" if there is nothing to report.
    """

    folder: Path
    config: ModelConfig
    talker: Talker
    code_predictor: CodePredictor
    decoder: CodecDecoder
    encoder: CodecEncoder | None = None
    speaker_encoder: SpeakerEncoder | None = None
    durations: DurationNet | None = None
    quant: str = NONE
    quant_note: str = ""

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.talker.codec_head.weight.device

    @property
    def language_dtype(self) -> torch.dtype:
        """Compute dtype of talker and code predictor."""
        return self.talker.codec_head.weight.dtype

    @property
    def cache_dtype(self) -> torch.dtype:
        """The dtype of the KV cache: `language_dtype`, or bfloat16 if the weights are quantized."""
        return self.language_dtype if self.quant == NONE else torch.bfloat16


@dataclass(frozen=True, slots=True)
class _Part:
    """A module to load, the prefix of its tensors in the file, and its dtype.

    `kept`: parameters that keep the dtype of the file. `kept_bf16`: parameters that keep it if it is bfloat16.
    """

    prefix: str
    module: nn.Module
    dtype: torch.dtype
    kept: frozenset[str] = frozenset()
    kept_bf16: frozenset[str] = frozenset()


def load_model(
    folder: Path,
    *,
    talker_dtype: str = "float32",
    codec_dtype: str | None = "float32",
    device: str = "cpu",
    codec_folder: Path | None = None,
    quant: str | None = NONE,
    fast_int8: bool = True,
    fast_bf16: bool = False,
    progress: ProgressCallback | None = None,
) -> LoadedModel:
    """Load the checkpoint in `folder` (`config.checkpoint` documents where its speech tokenizer may be).

    `talker_dtype` is that of talker and code predictor; both dtypes are "float32" or "bfloat16". `quant` quantizes
    their weights (`weights.quantization`); a checkpoint that is stored quantized is loaded as stored. None is the
    default for the size of the checkpoint and the device; `codec_dtype` None is bfloat16 if the weights are quantized
    by default and the CPU multiplies bfloat16 (`fast_bf16`), else float32. `fast_int8`: whether int8 may be chosen (see
    `backends.select.has_fast_int8`). Raises `CheckpointError`, `ConfigError` or
    `TensorError` with the cause, and `UnsupportedError` for another dtype or mode.
    """
    language_type = _dtype("talker_dtype", talker_dtype)
    config = _read_checked_config(folder, codec_folder)
    choice = _choose_quantization(quant, config, device, fast_int8=fast_int8)
    codec_type = _codec_dtype(codec_dtype, fast_bf16=fast_bf16 and quant is None and choice.mode != NONE)
    with empty_modules():
        talker = Talker(config.talker)
        predictor = CodePredictor(config.code_predictor, config.talker.stack.hidden_size)
        decoder = CodecDecoder(config.codec.decoder)
        speaker = SpeakerEncoder(config.speaker_encoder) if config.speaker_encoder is not None else None
        durations, encoder = _duration_net(config), _codec_encoder(config)
        if config.quantization != NONE:
            talker = quantize_modules(talker, config.quantization)
            predictor = quantize_modules(predictor, config.quantization)
    quantize = config.quantization == NONE and choice.mode != NONE
    main = [
        _language_part(names.TALKER, talker, language_type, quantize=quantize),
        _language_part(names.CODE_PREDICTOR, predictor, language_type, quantize=quantize),
        *_optional_part(names.SPEAKER_ENCODER, speaker, torch.float32),
        *_optional_part(names.DURATIONS, durations, torch.float32),
    ]
    codec = [_Part(names.DECODER, decoder, codec_type), *_optional_part(names.ENCODER, encoder, codec_type)]
    _load(main, folder, names.unused_in_main(config.kind), device, progress)
    unused = names.unused_in_codec(config.codec.encoder, encoder_built=encoder is not None)
    _load(codec, codec_location(folder, codec_folder), unused, device, progress)
    remove_identity_units(decoder.decoder)
    if quantize:
        talker, predictor = quantize_modules(talker, choice.mode), quantize_modules(predictor, choice.mode)
    return LoadedModel(
        folder=folder,
        config=config,
        talker=talker,
        code_predictor=predictor,
        decoder=decoder,
        encoder=encoder,
        speaker_encoder=speaker,
        durations=durations,
        quant=choice.mode,
        quant_note=choice.note,
    )


def _read_checked_config(folder: Path, codec_folder: Path | None) -> ModelConfig:
    """The configuration, whose sizes the weight files can have."""
    config = read_model_config(folder, codec_folder)
    with ExitStack() as stack:
        codec_files = weight_files(codec_location(folder, codec_folder))
        check_main_sizes(config, StoredTensors(stack, weight_files(folder)).shapes)
        check_codec_sizes(config.codec, StoredTensors(stack, codec_files).shapes)
    return config


def _choose_quantization(quant: str | None, config: ModelConfig, device: str, *, fast_int8: bool) -> QuantChoice:
    large = is_large(config.talker.stack)
    return choose_quantization(quant, config.quantization, device, fast_int8=fast_int8, large=large)


def _codec_dtype(codec_dtype: str | None, *, fast_bf16: bool) -> torch.dtype:
    return _dtype("codec_dtype", codec_dtype or ("bfloat16" if fast_bf16 else "float32"))


def _codec_encoder(config: ModelConfig) -> CodecEncoder | None:
    """The encoder of reference recordings, which only Base checkpoints use."""
    if config.kind != "base" or config.codec.encoder is None:
        return None
    return CodecEncoder(config.codec.encoder, config.codec.frame_samples)


def _language_part(prefix: str, module: nn.Module, dtype: torch.dtype, *, quantize: bool) -> _Part:
    """Talker or code predictor. Weights that will be quantized are not converted first."""
    kept = {name for name, parameter in module.named_parameters() if not parameter.is_floating_point()}
    kept |= {name for name, _ in module.named_parameters() if name.endswith((".scales", ".affine"))}
    linears = quantized_names(module)
    if quantize:
        kept |= linears
    return _Part(prefix, module, dtype, AS_STORED | kept, linears)


def _optional_part(prefix: str, module: nn.Module | None, dtype: torch.dtype) -> list[_Part]:
    return [] if module is None else [_Part(prefix, module, dtype)]


def _dtype(field: str, name: str) -> torch.dtype:
    if name == "float16":
        raise UnsupportedError(
            f"{field} float16 is not supported: activations of the official weights exceed its largest value (65504) "
            "and become infinite; use bfloat16, which takes the same memory, or float32",
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


# --- loading ---------------------------------------------------------------------------------------------------------


def _load(
    parts: list[_Part], folder: Path, unused: names.Unused, device: str, progress: ProgressCallback | None
) -> None:
    """Load all parameters of `parts` from the files of `folder`, after checking all names, shapes and dtypes."""
    with ExitStack() as stack:
        tensors = StoredTensors(stack, weight_files(folder))
        wanted = [(part, names.sources(part.module, part.prefix)) for part in parts]
        wrong = names.mismatches((source for _, table in wanted for source in table.values()), tensors.shapes, unused)
        wrong += _unsupported_dtypes(wanted, tensors)
        if wrong:
            raise TensorError(f"the tensors in {folder} do not match its config.json:\n  " + "\n  ".join(wrong))
        total = sum(tensors.bytes(source) for _, table in wanted for source in table.values())
        done = 0
        for part, table in wanted:
            for name, source in table.items():
                keeps_dtype = name in part.kept or (
                    name in part.kept_bf16 and tensors.stored[source.names[0]] == "BF16"
                )
                dtype = None if keeps_dtype else part.dtype
                strides = part.module.get_parameter(name).stride()
                _assign(part.module, name, _with_strides(_converted(tensors, source, dtype, device), strides))
                done += tensors.bytes(source)
                if progress is not None:
                    progress(Progress("load", part.prefix.rstrip("."), done, total))
            _finish(part.module)


def _unsupported_dtypes(wanted: list[tuple[_Part, dict[str, names.Source]]], tensors: StoredTensors) -> list[str]:
    return [
        f"unsupported dtype: {name} is {tensors.stored[name]}, must be {' or '.join(_readable(part, parameter))}"
        for part, table in wanted
        for parameter, source in table.items()
        for name in source.names
        if name in tensors.stored and tensors.stored[name] not in _readable(part, parameter)
    ]


def _readable(part: _Part, parameter: str) -> list[str]:
    integer = not part.module.get_parameter(parameter).is_floating_point()
    return [dtype for dtype in STORED_BYTES if (dtype in INTEGER) == integer]


def _converted(tensors: StoredTensors, source: names.Source, dtype: torch.dtype | None, device: str) -> Tensor:
    if source.is_codebook:
        total, usage = (tensors.read(name) for name in source.names)
        return codebook_table(total, usage).to(device)
    return tensors.read(source.names[0]).to(device=device, dtype=dtype)


def _with_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The tensor with the strides of the module's parameter, which a convolution chooses for its matmul."""
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _assign(module: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    module.get_submodule(path).register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))


def _finish(module: nn.Module) -> None:
    """Check that no tensor is left on the meta device, and switch to eval mode."""
    unfilled = [name for name, tensor in (*module.named_parameters(), *module.named_buffers()) if tensor.is_meta]
    if unfilled:
        raise StateError(f"{type(module).__name__} has tensors that were not loaded: {', '.join(unfilled)}")
    module.eval()
