"""One frame: the talker's hidden state and first code -> all codes. KIND 2 of the four states lives and dies here.

The scratch is made on entry of `predict_frame` and gone on return; no name of it leaves this folder.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from legato.models.code_predictor.predictor import CodePredictor
from legato.models.layers.decoder_layer import Cells, OwnKeyValues, attend, causal_visibility, wide_dtype
from legato.models.layers.rope import Rotation, inverse_frequencies, rotation
from legato.models.native.frame import draw_first_compiled, frame_compiled, whole_frames
from legato.models.sampling import Drawn, DrawSettings, draw, process_first_code_logits


@dataclass(frozen=True, slots=True)
class _FrameScratch:
    """Keys and values [L, B, H_kv, Q, head_dim] of the positions of one frame, filled from the left."""

    keys: Tensor
    values: Tensor

    @staticmethod
    def allocate(predictor: CodePredictor, rows: int, like: Tensor) -> _FrameScratch:
        """Not initialised: a position is read only after it was written."""
        stack = predictor.config.stack
        Q = predictor.config.num_codebooks
        shape = (stack.num_hidden_layers, rows, stack.num_key_value_heads, Q, stack.head_dim)
        return _FrameScratch(like.new_empty(shape), like.new_empty(shape))


@dataclass(frozen=True, slots=True)
class _ScratchWindow:
    """Positions `start .. end` of the scratch are new, `0 .. end` are read; `visible` as of `attend`."""

    scratch: _FrameScratch
    start: int
    end: int
    visible: Tensor | None

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write the new positions, attend to all so far."""
        past_keys, past_values = (
            self.scratch.keys[layer, :, :, : self.end],
            self.scratch.values[layer, :, :, : self.end],
        )
        past_keys[:, :, self.start :] = keys
        past_values[:, :, self.start :] = values
        return attend(queries, past_keys, past_values, self.visible)

    def cells(self) -> Cells:
        """A slot of the scratch for each row."""
        keys, values = self.scratch.keys, self.scratch.values
        B, new = keys.shape[1], self.end - self.start
        slots = torch.arange(B * new, device=keys.device) // new
        positions = self.start + torch.arange(B * new, device=keys.device) % new
        return Cells(keys, values, slots, positions, None, self.end)


def draw_first_code(
    predictor: CodePredictor,
    logits: Tensor,
    seen: Tensor,
    *,
    frames: Tensor,
    allow_eos: Tensor,
    repetition_penalty: Tensor,
    eos: int,
    settings: DrawSettings,
    uniform: Tensor,
) -> Drawn:
    """Codebook 0 of each row, by whoever draws the rest of this predictor's frames.

    `logits` [B, V] of the talker; the rest as in `process_first_code_logits` and `draw`.
    """
    size, compiled = predictor.config.codebook_size, whole_frames(predictor, logits)
    if compiled is not None:
        return draw_first_compiled(
            *(compiled, logits, seen),
            frames=frames,
            allow_eos=allow_eos,
            repetition_penalty=repetition_penalty,
            codebook_size=size,
            eos=eos,
            settings=settings,
            uniform=uniform,
        )
    legal = process_first_code_logits(
        *(logits, seen),
        frames=frames,
        allow_eos=allow_eos,
        repetition_penalty=repetition_penalty,
        codebook_size=size,
        eos=eos,
    )
    return draw(legal, settings, uniform)


def predict_frame(
    predictor: CodePredictor,
    talker_code_embedding: nn.Module,
    hidden: Tensor,
    first_code: Tensor,
    *,
    settings: DrawSettings,
    noise: Tensor,
) -> Drawn:
    """All codes of one frame for each row: codes int64 [B, Q] (the first is `first_code`) and finite bool [B].

    `talker_code_embedding`: the talker's codec embedding. `hidden` [B, D]: the talker's post-final-norm state from
    which `first_code` int64 [B] was drawn. `settings`: how residual codes are drawn. `noise` [B, Q] uniform in [0, 1),
    one column for each codebook; column 0 belongs to the first code and is not used here.
    """
    config = predictor.config
    Q = config.num_codebooks
    x = torch.stack((hidden, talker_code_embedding(first_code)), dim=1)
    scratch = _FrameScratch.allocate(predictor, x.shape[0], hidden)
    whole = _rotation_of_frame(predictor, x)
    lower = torch.ones(2, 2, dtype=torch.bool, device=x.device).tril()[None]
    compiled = whole_frames(predictor, x)
    if compiled is not None:
        cells = _ScratchWindow(scratch, 0, 2, lower).cells()
        return frame_compiled(compiled, predictor, x, cells, by=whole, codes=first_code, settings=settings, noise=noise)
    codes, finite = [first_code], torch.ones_like(first_code, dtype=torch.bool)
    start = 0
    for j in range(Q - 1):
        end = j + 2
        by = Rotation(whole.cos[:, :, start:end], whole.sin[:, :, start:end])
        window = _ScratchWindow(scratch, start, end, lower if j == 0 else None)
        states = predictor(x, by=by, kv=window)
        drawn = draw(predictor.logits(states[:, -1], j), settings, noise[:, j + 1])
        codes.append(drawn.codes)
        finite = finite & drawn.finite
        start = end
        if end < Q:
            x = predictor.model.codec_embedding[j](drawn.codes)[:, None]
    return Drawn(torch.stack(codes, dim=1), finite)


def predict_frame_whole_logits(
    predictor: CodePredictor, talker_code_embedding: nn.Module, hidden: Tensor, codes: Tensor
) -> Tensor:
    """Logits of all residual codebooks for given frames in one call without scratch, [B, Q - 1, codebook_size].

    `hidden` [B, D], `codes` int64 [B, Q]; row j of the result is what codebook j + 1 is drawn from. Usable under
    autograd: it is the training forward and the oracle of the stepwise one.
    """
    embedded = [talker_code_embedding(codes[:, 0])]
    embedded += [predictor.model.codec_embedding[j](codes[:, j + 1]) for j in range(codes.shape[1] - 2)]
    # Under autocast the hidden state may be narrower than the embeddings.
    x = torch.stack([hidden, *[vector.to(hidden.dtype) for vector in embedded]], dim=1)
    visible = causal_visibility(torch.ones(1, x.shape[1], dtype=torch.bool, device=x.device))
    states = predictor(x, by=_rotation_of_frame(predictor, x), kv=OwnKeyValues(visible))
    return torch.stack([predictor.logits(states[:, j + 1], j) for j in range(codes.shape[1] - 1)], dim=1)


def _rotation_of_frame(predictor: CodePredictor, x: Tensor) -> Rotation:
    """The rotation of positions 0 .. Q - 1, the same for every row."""
    stack = predictor.config.stack
    positions = torch.arange(predictor.config.num_codebooks, device=x.device)[None]
    return rotation(positions, inverse_frequencies(stack.head_dim, stack.rope_theta, x.device), wide_dtype(x))
