"""The code predictor for a whole frame in one kernel call, and the native sampler. See `frame.c`."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int64, c_void_p

import torch
from torch import Tensor, nn

from legato.backends.cpu.lm import NativeLayers, NativeLinearBase, cache_args, prepared_rows
from legato.kernels.library import Library
from legato.kernels.structs import First, Predictor, Settings, Work
from legato.kernels.threads import num_threads
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.layers.decoder_layer import KVLocations
from legato.models.layers.rope import RopeTables
from legato.models.sampling import Sampled, SamplerSettings, end_allowed


def frame_library(predictor: CodePredictor, dtype: torch.dtype) -> Library | None:
    """The library if it can compute whole frames of this predictor, else None.

    It can if all linears are native and everything else is float32. If a head has a forward hook, by which verification
    reads the logits, frames are computed step by step in PyTorch.
    """
    if not isinstance(predictor.model.layers, NativeLayers) or dtype != torch.float32:
        return None
    if any(head._forward_hooks for head in predictor.lm_head):
        return None
    projection = predictor.small_to_mtp_projection
    if isinstance(projection, NativeLinearBase):
        native = projection.bias is not None
    else:
        native = isinstance(projection, nn.Identity)
    native = native and all(isinstance(head, NativeLinearBase) and head.bias is None for head in predictor.lm_head)
    tables = (*predictor.model.codec_embedding, predictor.model.norm)
    if not native or any(table.weight.dtype != torch.float32 for table in tables):
        return None
    return predictor.model.layers.library


def sample_native(library: Library, logits: Tensor, settings: SamplerSettings, uniform: Tensor) -> Sampled:
    """`sampling.sample` for float32 `logits` [B, V], computed by `frame.c`.

    Its exponentials may differ from PyTorch's in the last digit. A code then differs if the uniform random number is
    that close to the boundary between two codes.
    """
    return _sampled(library, logits, None, settings, uniform)


def sample_first_native(
    library: Library,
    logits: Tensor,
    seen: Tensor,
    *,
    frames: Tensor,
    allow_eos: Tensor,
    repetition_penalty: Tensor,
    codebook_size: int,
    eos: int,
    settings: SamplerSettings,
    uniform: Tensor,
) -> Sampled:
    """`process_first_code_logits` and `sample` for float32 `logits` [B, V]; see `sample_native`."""
    contiguous_seen, may_end = seen.contiguous(), end_allowed(frames, allow_eos)
    penalty = repetition_penalty.float().contiguous()
    first = First(
        seen=contiguous_seen.data_ptr(),
        may_end=may_end.data_ptr(),
        penalty=penalty.data_ptr(),
        codes=codebook_size,
        eos=eos,
    )
    sampled = _sampled(library, logits, first, settings, uniform)
    del contiguous_seen, may_end, penalty  # `first` points into them
    return sampled


def _sampled(
    library: Library, logits: Tensor, first: First | None, settings: SamplerSettings, uniform: Tensor
) -> Sampled:
    B, V = logits.shape
    values, noise = logits.contiguous(), uniform.double().contiguous()
    codes, finite = torch.zeros(B, dtype=torch.int64), torch.ones(B, dtype=torch.bool)
    tensors, settings_args = _settings(settings)
    status = library.draw(
        c_int64(B),
        c_int64(V),
        c_int64(num_threads()),
        c_void_p(values.data_ptr()),
        None if first is None else byref(first),
        byref(settings_args),
        c_void_p(noise.data_ptr()),
        c_int64(1),
        c_void_p(codes.data_ptr()),
        c_int64(1),
        c_void_p(finite.data_ptr()),
    )
    _check(status)
    del tensors
    return Sampled(codes, finite)


def predict_frame_native(
    library: Library,
    predictor: CodePredictor,
    first: Tensor,
    locations: KVLocations,
    *,
    rope: RopeTables,
    codes: Tensor,
    settings: SamplerSettings,
    noise: Tensor,
) -> Sampled:
    """All codes [B, Q] of one frame per row.

    `first` [B, 2, talker width]: hidden state and embedding of the first code. `codes` int64 [B]: the first code.
    `locations`: locations of their keys and values in the frame's scratch cache; overwritten with those of later steps.
    `rope`: tables for all positions of a frame. `noise` [B, Q]: uniform random numbers.
    """
    B, Q, d = len(codes), noise.shape[1], rope.cos.shape[-1]
    layers = predictor.model.layers
    assert isinstance(layers, NativeLayers)
    x = predictor.small_to_mtp_projection(first).reshape(2 * B, -1).clone()
    all_codes = torch.zeros(B, Q, dtype=torch.int64)
    all_codes[:, 0] = codes
    finite, wide_noise = torch.ones(B, dtype=torch.bool), noise.double().contiguous()
    cos, sin = (part.reshape(Q, d).contiguous() for part in rope)
    predictor_args, alive = _predictor(predictor, layers, cos, sin)
    threads = num_threads()
    workspace, workspace_tensors = layers.workspace(2 * B, Q, threads)
    cache = cache_args(locations)
    scratch = _frame_scratch(predictor, predictor_args, B, library)
    frame_workspace = Work(
        cache=ctypes.addressof(cache),
        room=ctypes.addressof(workspace),
        slots=locations.slots.data_ptr(),
        positions=locations.positions.data_ptr(),
        x=x.data_ptr(),
        **{name: tensor.data_ptr() for name, tensor in scratch.items()},
    )
    settings_tensors, settings_args = _settings(settings)
    status = library.frame(
        byref(predictor_args),
        byref(frame_workspace),
        byref(settings_args),
        c_int64(B),
        c_int64(threads),
        c_void_p(wide_noise.data_ptr()),
        c_void_p(all_codes.data_ptr()),
        c_void_p(finite.data_ptr()),
    )
    _check(status)
    del alive, scratch, workspace_tensors, settings_tensors  # the structs point into them
    return Sampled(all_codes, finite)


def _frame_scratch(predictor: CodePredictor, args: Predictor, B: int, library: Library) -> dict[str, Tensor]:
    """Uninitialized memory for one frame of B rows, by its field of `Work`."""
    linears = (*predictor.lm_head, predictor.small_to_mtp_projection)
    longest = max(each.prepared_bytes for each in linears if isinstance(each, NativeLinearBase))
    return {
        "cos": torch.empty(2 * B * args.head_dim),
        "sin": torch.empty(2 * B * args.head_dim),
        "normed": torch.empty(B * args.width),
        "logits": torch.empty(B * args.codes),
        "embedded": torch.empty(B * args.given),
        "scales": torch.empty(B),
        "ready": prepared_rows(B, longest, library),
    }


def _predictor(
    predictor: CodePredictor, layers: NativeLayers, cos: Tensor, sin: Tensor
) -> tuple[Predictor, tuple[object, ...]]:
    """The kernel arguments, and objects to keep alive while they are used."""
    heads, projection = [_native(each) for each in predictor.lm_head], predictor.small_to_mtp_projection
    tables = [each.weight for each in predictor.model.codec_embedding if isinstance(each, nn.Embedding)]
    head_pointers = (c_void_p * len(heads))(*(ctypes.addressof(each.args) for each in heads))
    embeddings = (c_void_p * len(tables))(*(each.data_ptr() for each in tables))
    projection_args, bias = None, None
    if isinstance(projection, NativeLinearBase):
        assert projection.bias is not None
        projection_args, bias = ctypes.addressof(projection.args), projection.bias.float()
    args = Predictor(
        stack=ctypes.addressof(layers.stack),
        heads=ctypes.addressof(head_pointers),
        embeddings=ctypes.addressof(embeddings),
        projection=projection_args,
        projection_bias=None if bias is None else bias.data_ptr(),
        norm=predictor.model.norm.weight.data_ptr(),
        cos=cos.data_ptr(),
        sin=sin.data_ptr(),
        books=len(heads),
        codes=predictor.config.codebook_size,
        width=predictor.config.stack.hidden_size,
        given=tables[0].shape[1],
        head_dim=predictor.config.stack.head_dim,
        eps=predictor.model.norm.eps,
    )
    return args, (head_pointers, embeddings, bias)


def _settings(settings: SamplerSettings) -> tuple[tuple[Tensor, ...], Settings]:
    """Tensors to keep alive while the kernel arguments are used, and the arguments."""
    temperature, top_p = settings.temperature.float().contiguous(), settings.top_p.float().contiguous()
    top_k = settings.top_k.contiguous()
    args = Settings(temperature=temperature.data_ptr(), top_k=top_k.data_ptr(), top_p=top_p.data_ptr())
    return (temperature, top_k, top_p), args


def _native(module: nn.Module) -> NativeLinearBase:
    assert isinstance(module, NativeLinearBase)
    return module


def _check(status: int) -> None:
    if status:
        raise MemoryError("the sampler could not allocate its workspace")
