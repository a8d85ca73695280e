"""A whole frame of the code predictor in one call of `frame.c`, where its layers and heads are compiled ones.

Owns nothing: weights are the predictor's, and the scratch of a frame is gone on return.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, byref, c_float, c_int64, c_void_p

import torch
from torch import Tensor, nn

from legato.models.code_predictor.predictor import CodePredictor
from legato.models.layers.decoder_layer import Cells
from legato.models.layers.rope import Rotation
from legato.models.native.layers import NativeLayers, NativeMap, places
from legato.models.native.library import Library
from legato.models.sampling import Drawn, DrawSettings, end_allowed


class Predictor(Structure):
    """The predictor's weights and how they are multiplied."""

    _fields_ = (
        *((name, c_void_p) for name in ("stack", "heads", "embeddings", "projection")),
        *((name, c_void_p) for name in ("projection_bias", "norm", "cos", "sin")),
        *((name, c_int64) for name in ("books", "codes", "width", "given", "head_dim")),
        ("eps", c_float),
    )


class Work(Structure):
    """What one frame is computed in."""

    _fields_ = (
        *((name, c_void_p) for name in ("cache", "room")),
        ("score_row", c_int64),
        *((name, c_void_p) for name in ("slots", "positions", "x", "cos", "sin", "normed", "logits", "embedded")),
        *((name, c_void_p) for name in ("scales", "ready")),
    )


class Settings(Structure):
    """`DrawSettings` by address."""

    _fields_ = tuple((name, c_void_p) for name in ("temperature", "top_k", "top_p"))


class First(Structure):
    """What is done to the logits of codebook 0 before they are drawn from."""

    _fields_ = (
        *((name, c_void_p) for name in ("seen", "may_end", "penalty")),
        *((name, c_int64) for name in ("codes", "eos")),
    )


def whole_frames(predictor: CodePredictor, inputs: Tensor) -> Library | None:
    """The library, if frames of this predictor can be computed by it: all maps compiled, all else in float32.

    Where somebody listens to a head (a hook), every head is called, and steps go one by one.
    """
    if not isinstance(predictor.model.layers, NativeLayers) or inputs.dtype != torch.float32:
        return None
    if any(head._forward_hooks for head in predictor.lm_head):
        return None
    projection = predictor.small_to_mtp_projection
    narrows = isinstance(projection, nn.Identity) or (isinstance(projection, NativeMap) and projection.bias is not None)
    maps = narrows and all(isinstance(head, NativeMap) and head.bias is None for head in predictor.lm_head)
    tables = (*predictor.model.codec_embedding, predictor.model.norm)
    if not maps or any(table.weight.dtype != torch.float32 for table in tables):
        return None
    return predictor.model.layers.library


def draw_compiled(found: Library, logits: Tensor, settings: DrawSettings, uniform: Tensor) -> Drawn:
    """`sampling.draw` of float32 `logits` [B, V], as `frame.c` draws.

    Its exponentials may differ from torch's in their last digit: a code could differ where a uniform number is as near
    to an edge as that.
    """
    return _drawn(found, logits, None, settings, uniform)


def draw_first_compiled(
    found: Library,
    logits: Tensor,
    seen: Tensor,
    *,
    frames: Tensor,
    allow_eos: Tensor,
    repetition_penalty: Tensor,
    codebook_size: int,
    eos: int,
    settings: DrawSettings,
    uniform: Tensor,
) -> Drawn:
    """`sampling.process_first_code_logits` and `sampling.draw` of float32 `logits` [B, V], as `draw_compiled`."""
    held, may_end = seen.contiguous(), end_allowed(frames, allow_eos)
    penalty = repetition_penalty.float().contiguous()
    first = First(held.data_ptr(), may_end.data_ptr(), penalty.data_ptr(), codebook_size, eos)
    drawn = _drawn(found, logits, first, settings, uniform)
    del held, may_end, penalty
    return drawn


def _drawn(found: Library, logits: Tensor, first: First | None, settings: DrawSettings, uniform: Tensor) -> Drawn:
    B, V = logits.shape
    values, chances = logits.contiguous(), uniform.double().contiguous()
    codes, finite = torch.zeros(B, dtype=torch.int64), torch.ones(B, dtype=torch.bool)
    kept, how = _settings(settings)
    numbers = c_int64(B), c_int64(V), c_int64(torch.get_num_threads())
    given = (
        c_void_p(values.data_ptr()),
        None if first is None else byref(first),
        byref(how),
        c_void_p(chances.data_ptr()),
    )
    results = c_int64(1), c_void_p(codes.data_ptr()), c_int64(1), c_void_p(finite.data_ptr())
    _done(found.draw(*numbers, *given, *results))
    del kept
    return Drawn(codes, finite)


def frame_compiled(
    found: Library,
    predictor: CodePredictor,
    first: Tensor,
    cells: Cells,
    *,
    by: Rotation,
    codes: Tensor,
    settings: DrawSettings,
    noise: Tensor,
) -> Drawn:
    """All codes of a frame of each row.

    `first` [B, 2, talker width]: hidden state and embedded first code; `codes` int64 [B]: that code; `cells`: places of
    both in the frame's scratch, overwritten here with those of later steps; `by`: the rotation of all positions;
    `noise` [B, Q].
    """
    B, Q, d = len(codes), noise.shape[1], by.cos.shape[-1]
    layers = predictor.model.layers
    assert isinstance(layers, NativeLayers)
    x = predictor.small_to_mtp_projection(first).reshape(2 * B, -1).clone()
    all_codes = torch.zeros(B, Q, dtype=torch.int64)
    all_codes[:, 0] = codes
    finite, chances = torch.ones(B, dtype=torch.bool), noise.double().contiguous()
    cos, sin = (part.reshape(Q, d).contiguous() for part in by)
    described, kept = _predictor(predictor, layers, cos, sin)
    room, score_row, room_kept = layers.room(2 * B, Q)
    cache = places(cells)
    sizes = (2 * B * d, 2 * B * d, B * described.width, B * described.codes, B * described.given, B)
    parts = [torch.empty(size) for size in sizes]
    maps = (*predictor.lm_head, predictor.small_to_mtp_projection)
    longest = max(each.prepared_bytes for each in maps if isinstance(each, NativeMap))
    ready = torch.empty(B * longest, dtype=torch.uint8)
    work = Work(
        *(ctypes.addressof(cache), ctypes.addressof(room), score_row),
        *(each.data_ptr() for each in (cells.slots, cells.positions, x, *parts, ready)),
    )
    settings_kept, how = _settings(settings)
    numbers = c_int64(B), c_int64(torch.get_num_threads())
    results = (c_void_p(each.data_ptr()) for each in (chances, all_codes, finite))
    _done(found.frame(byref(described), byref(work), byref(how), *numbers, *results))
    del kept, room_kept, settings_kept
    return Drawn(all_codes, finite)


def _predictor(
    predictor: CodePredictor, layers: NativeLayers, cos: Tensor, sin: Tensor
) -> tuple[Predictor, tuple[object, ...]]:
    """The struct, and what must live as long as it does."""
    heads, projection = [_linear(each) for each in predictor.lm_head], predictor.small_to_mtp_projection
    tables = [each.weight for each in predictor.model.codec_embedding if isinstance(each, nn.Embedding)]
    maps = (c_void_p * len(heads))(*(ctypes.addressof(each.described) for each in heads))
    embeddings = (c_void_p * len(tables))(*(each.data_ptr() for each in tables))
    narrowed = [projection] if isinstance(projection, NativeMap) else []
    biases = [each.bias.float() for each in narrowed if each.bias is not None]
    stack, width = layers.stack, predictor.config.stack.hidden_size
    described = Predictor(
        *(ctypes.addressof(stack), ctypes.addressof(maps), ctypes.addressof(embeddings)),
        ctypes.addressof(narrowed[0].described) if narrowed else None,
        biases[0].data_ptr() if narrowed else None,
        *(predictor.model.norm.weight.data_ptr(), cos.data_ptr(), sin.data_ptr()),
        *(len(heads), predictor.config.codebook_size, width, tables[0].shape[1]),
        *(predictor.config.stack.head_dim, predictor.model.norm.eps),
    )
    return described, (maps, embeddings, biases)


def _settings(settings: DrawSettings) -> tuple[tuple[Tensor, ...], Settings]:
    kept = (settings.temperature.float().contiguous(), settings.top_k.contiguous(), settings.top_p.float().contiguous())
    return kept, Settings(*(each.data_ptr() for each in kept))


def _linear(module: nn.Module) -> NativeMap:
    assert isinstance(module, NativeMap)
    return module


def _done(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for the draws of a frame")
