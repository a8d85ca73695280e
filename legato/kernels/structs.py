"""ctypes mirrors of the C structs that describe the language model's layers, cache and scratch to the kernels.

Field names and order are those of `linear.h`, `layers.h` and `frame.c`; `struct_layout.py` compares the two at load.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int64, c_void_p

INT8, BFLOAT16, INT4, FLOAT32 = range(4)
"""Weight formats of a `Linear`, in the order of the enum in `linear.h`."""
MAX_INT8_INPUTS = 8192
"""`MAX_INPUTS` in `linear.h`."""


class Linear(Structure):
    """A linear layer and the format of its weights.

    INT8 has a scale and a sum per output, INT4 a scale and a zero point per group. BFLOAT16 and FLOAT32 have weights
    only.
    """

    _fields_ = (
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("row_sum", c_void_p),
        ("out_features", c_int64),
        ("in_features", c_int64),
        ("dtype", c_int64),
        ("use_amx", c_int64),
    )


class Layer(Structure):
    """The linear layers and norms of a decoder layer.

    The linears of one input may be fused or separate. Of fused ones the first holds all outputs, the others none.
    """

    _fields_ = (
        ("qkv", Linear * 3),
        ("out", Linear),
        ("gate_up", Linear * 2),
        ("down", Linear),
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


ALL = (Linear, Layer, Stack, Cache, Room, Predictor, Work, Settings, First)
