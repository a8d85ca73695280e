"""ctypes mirrors of the C structs that describe the language model's layers, cache and scratch to the kernels.

Field names and order are those of `maps.h`, `layers.h` and `frame.c`; `struct_layout.py` compares the two at load.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int64, c_void_p

INT8, BFLOAT16, INT4, FLOAT32 = range(4)
"""Weight formats of a `Map`, in the order of the enum in `maps.h`."""


class Map(Structure):
    """A linear layer [n, k] and the format of its weights.

    INT8 has a scale and a sum per output, INT4 a step and a middle per group. BFLOAT16 and FLOAT32 have values only.
    """

    _fields_ = (
        ("values", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("kind", c_int64),
        ("tiles", c_int64),
    )


class Layer(Structure):
    """The linear layers and norms of a decoder layer.

    The linears of one input may be fused or separate. Of fused ones the first holds all outputs, the others none.
    """

    _fields_ = (
        ("qkv", Map * 3),
        ("out", Map),
        ("gate_up", Map * 2),
        ("down", Map),
        ("input_norm", c_void_p),
        ("post_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
    )


class Stack(Structure):
    """Consecutive decoder layers and their sizes."""

    _fields_ = (
        ("layers", POINTER(Layer)),
        ("count", c_int64),
        ("width", c_int64),
        ("inner", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("eps", c_float),
    )


class Cache(Structure):
    """Storage of keys and values with its strides, and the slot and position of each row of a call."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("layer", c_int64),
        ("slot", c_int64),
        ("head", c_int64),
        ("position", c_int64),
        ("slots", c_void_p),
        ("positions", c_void_p),
        ("half", c_int64),
    )


class Room(Structure):
    """Scratch memory of a call."""

    _fields_ = (
        ("wide", c_void_p),
        ("mixed", c_void_p),
        ("narrow", c_void_p),
        ("normed", c_void_p),
        ("scales", c_void_p),
        ("scores", c_void_p),
        ("ready", c_void_p),
        ("score_row", c_int64),
    )


class Predictor(Structure):
    """The code predictor: its layers, heads, embeddings, input projection, final norm and RoPE tables."""

    _fields_ = (
        ("stack", c_void_p),
        ("heads", c_void_p),
        ("embeddings", c_void_p),
        ("projection", c_void_p),
        ("projection_bias", c_void_p),
        ("norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("books", c_int64),
        ("codes", c_int64),
        ("width", c_int64),
        ("given", c_int64),
        ("head_dim", c_int64),
        ("eps", c_float),
    )


class Work(Structure):
    """Inputs and scratch memory of one frame."""

    _fields_ = (
        ("cache", c_void_p),
        ("room", c_void_p),
        ("slots", c_void_p),
        ("positions", c_void_p),
        ("x", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("normed", c_void_p),
        ("logits", c_void_p),
        ("embedded", c_void_p),
        ("scales", c_void_p),
        ("ready", c_void_p),
    )


class Settings(Structure):
    """The tensors of a `SamplerSettings`."""

    _fields_ = (("temperature", c_void_p), ("top_k", c_void_p), ("top_p", c_void_p))


class First(Structure):
    """Processing of the logits of codebook 0 before sampling: see `process_first_code_logits`."""

    _fields_ = (
        ("seen", c_void_p),
        ("may_end", c_void_p),
        ("penalty", c_void_p),
        ("codes", c_int64),
        ("eos", c_int64),
    )


ALL = (Map, Layer, Stack, Cache, Room, Predictor, Work, Settings, First)
