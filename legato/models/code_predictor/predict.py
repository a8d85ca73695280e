"""Predict one frame: from the talker's hidden state and the first code, the codes of all codebooks.

This is the reference implementation, one codebook at a time. The scratch of a frame (its keys and values) is allocated
on entry of `predict_frame` and freed on return; it is private to this module.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from legato.models.code_predictor.predictor import CodePredictor
from legato.models.layers.attention import attention, wide_dtype
from legato.models.layers.decoder_layer import KVLocations, UncachedKV, causal_visibility
from legato.models.layers.rope import RopeTables, inverse_frequencies, rope_tables
from legato.models.sampling import Sampled, SamplerSettings, process_first_code_logits, sample


@dataclass(frozen=True, slots=True)
class _FrameScratch:
    """Keys and values [L, B, H_kv, Q, head_dim] of the positions of one frame, filled from position 0 on."""

    keys: Tensor
    values: Tensor

    @staticmethod
    def allocate(predictor: CodePredictor, rows: int, like: Tensor) -> _FrameScratch:
        """Allocate without initialization: each position is written before it is read."""
        stack = predictor.config.stack
        Q = predictor.config.num_codebooks
        shape = (stack.num_hidden_layers, rows, stack.num_key_value_heads, Q, stack.head_dim)
        return _FrameScratch(like.new_empty(shape), like.new_empty(shape))


@dataclass(frozen=True, slots=True)
class _ScratchView:
    """A `KVView` of the scratch: positions `start` to `end` are new, 0 to `end` are read. `mask`: see `attention`."""

    scratch: _FrameScratch
    start: int
    end: int
    mask: Tensor | None

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Store the new positions, then attend to all positions so far."""
        all_keys = self.scratch.keys[layer, :, :, : self.end]
        all_values = self.scratch.values[layer, :, :, : self.end]
        all_keys[:, :, self.start :] = keys
        all_values[:, :, self.start :] = values
        return attention(queries, all_keys, all_values, self.mask)

    def locations(self) -> KVLocations:
        """One slot of the scratch per row."""
        keys, values = self.scratch.keys, self.scratch.values
        B, new = keys.shape[1], self.end - self.start
        slots = torch.arange(B * new, device=keys.device) // new
        positions = self.start + torch.arange(B * new, device=keys.device) % new
        return KVLocations(keys, values, slots, positions, None, self.end)


def sample_first_code(
    predictor: CodePredictor,
    logits: Tensor,
    seen: Tensor,
    *,
    frames: Tensor,
    allow_eos: Tensor,
    repetition_penalty: Tensor,
    eos: int,
    settings: SamplerSettings,
    uniform: Tensor,
) -> Sampled:
    """Sample codebook 0 of each row from the talker's `logits` [B, V].

    The other arguments are those of `process_first_code_logits` and `sample`.
    """
    legal = process_first_code_logits(
        logits,
        seen,
        frames=frames,
        allow_eos=allow_eos,
        repetition_penalty=repetition_penalty,
        codebook_size=predictor.config.codebook_size,
        eos=eos,
    )
    return sample(legal, settings, uniform)


def predict_frame(
    predictor: CodePredictor,
    talker_code_embedding: nn.Module,
    hidden: Tensor,
    first_code: Tensor,
    *,
    settings: SamplerSettings,
    noise: Tensor,
) -> Sampled:
    """All codes of one frame of each row: codes int64 [B, Q] (column 0 is `first_code`) and finite bool [B].

    `talker_code_embedding`: the talker's codec embedding. `hidden` [B, D]: the talker's post-final-norm state from
    which `first_code` int64 [B] was sampled. `settings`: sampling of the residual codebooks. `noise` [B, Q] uniform in
    [0, 1), one column per codebook; column 0 belongs to the first code and is not used here.
    """
    Q = predictor.config.num_codebooks
    x = first_inputs(talker_code_embedding, hidden, first_code)
    scratch = _FrameScratch.allocate(predictor, x.shape[0], hidden)
    rope = frame_rope_tables(predictor, x)
    causal = torch.ones(2, 2, dtype=torch.bool, device=x.device).tril()[None]
    codes, finite = [first_code], torch.ones_like(first_code, dtype=torch.bool)
    start = 0
    for j in range(Q - 1):
        end = j + 2
        step_rope = RopeTables(rope.cos[:, :, start:end], rope.sin[:, :, start:end])
        view = _ScratchView(scratch, start, end, causal if j == 0 else None)
        states = predictor(x, rope=step_rope, kv=view)
        sampled = sample(predictor.logits(states[:, -1], j), settings, noise[:, j + 1])
        codes.append(sampled.codes)
        finite = finite & sampled.finite
        start = end
        if end < Q:
            x = predictor.model.codec_embedding[j](sampled.codes)[:, None]
    return Sampled(torch.stack(codes, dim=1), finite)


def frame_logits_uncached(
    predictor: CodePredictor, talker_code_embedding: nn.Module, hidden: Tensor, codes: Tensor
) -> Tensor:
    """Logits of all residual codebooks of given frames in one call without scratch, [B, Q - 1, codebook_size].

    `hidden` [B, D], `codes` int64 [B, Q]; row j of the result is the distribution of codebook j + 1. Works under
    autograd: training uses it, and tests compare `predict_frame` with it.
    """
    embedded = [talker_code_embedding(codes[:, 0])]
    embedded += [predictor.model.codec_embedding[j](codes[:, j + 1]) for j in range(codes.shape[1] - 2)]
    # Under autocast the hidden state may be narrower than the embeddings.
    x = torch.stack([hidden, *[vector.to(hidden.dtype) for vector in embedded]], dim=1)
    mask = causal_visibility(torch.ones(1, x.shape[1], dtype=torch.bool, device=x.device))
    states = predictor(x, rope=frame_rope_tables(predictor, x), kv=UncachedKV(mask))
    return torch.stack([predictor.logits(states[:, j + 1], j) for j in range(codes.shape[1] - 1)], dim=1)


def first_inputs(talker_code_embedding: nn.Module, hidden: Tensor, first_code: Tensor) -> Tensor:
    """The first two inputs of a frame, [B, 2, talker width]: the hidden state and the embedded first code."""
    return torch.stack((hidden, talker_code_embedding(first_code)), dim=1)


def first_kv_locations(predictor: CodePredictor, rows: int, like: Tensor) -> KVLocations:
    """Allocate the scratch of `rows` frames; returns it with the locations of the first two inputs."""
    scratch = _FrameScratch.allocate(predictor, rows, like)
    return _ScratchView(scratch, 0, 2, None).locations()


def frame_rope_tables(predictor: CodePredictor, x: Tensor) -> RopeTables:
    """RoPE tables of positions 0 to Q - 1, the same for every row, on the device of `x`."""
    stack = predictor.config.stack
    positions = torch.arange(predictor.config.num_codebooks, device=x.device)[None]
    return rope_tables(positions, inverse_frequencies(stack.head_dim, stack.rope_theta, x.device), wide_dtype(x))
