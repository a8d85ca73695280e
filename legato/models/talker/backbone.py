"""The talker: the language model over time, one position a frame. Official names below the `talker.` prefix.

Owns weights alone. The cache, the rows and where each row stands are arguments; nothing here knows a sequence, a batch
policy or a sampler.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.config.model import BpeTextConfig, PhoneTextConfig, TalkerConfig, TransformerConfig
from legato.models.layers.decoder_layer import (
    DecoderLayer,
    KeyValues,
    Layers,
    OwnKeyValues,
    causal_visibility,
    wide_dtype,
)
from legato.models.layers.norm import RMSNorm
from legato.models.layers.rope import inverse_frequencies, rotation
from legato.models.talker.state import KVRows, TalkerCache, open_window, require_kv_rows


class TextProjection(nn.Module):
    """`fc2(silu(fc1(x)))`: from the text embedding's width to the talker's."""

    def __init__(self, text_width: int, width: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(text_width, text_width)
        self.linear_fc2 = nn.Linear(text_width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., text width] -> [..., D]."""
        y: Tensor = self.linear_fc2(functional.silu(self.linear_fc1(x)))
        return y


class TalkerModel(nn.Module):
    """What stands below `talker.model.`: the layers and the embeddings of codes and text."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        stack, text = config.stack, config.text
        self.layers = Layers(DecoderLayer(stack) for _ in range(stack.num_hidden_layers))
        self.norm = RMSNorm(stack.hidden_size, stack.rms_norm_eps)
        self.codec_embedding = nn.Embedding(config.vocab_size, stack.hidden_size)
        if isinstance(text, BpeTextConfig):
            self.text_embedding = nn.Embedding(text.text_vocab_size, text.text_hidden_size)
        else:
            self.phone_embedding = nn.ModuleList(
                nn.Embedding(len(text.phones), stack.hidden_size) for _ in range(text.tables)
            )


class Talker(nn.Module):
    """Prompt and frames in, hidden states out: `forward` steps on a cache, `forward_whole` needs none."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        self.model = TalkerModel(config)
        self.codec_head = nn.Linear(config.stack.hidden_size, config.vocab_size, bias=False)
        if isinstance(config.text, BpeTextConfig):
            self.text_projection = TextProjection(config.text.text_hidden_size, config.stack.hidden_size)

    def forward(
        self,
        cache: TalkerCache,
        rows: KVRows,
        x: Tensor,
        starts: Tensor,
        lengths: Tensor | None = None,
        *,
        span: int | None = None,
    ) -> Tensor:
        """Advance each row by its positions: post-final-norm hidden [B, D] of each row's last valid position.

        `x` [B, T, D]; `starts` int64 [B] position of each row's first input; `lengths` int64 [B] of valid inputs (None:
        all T). Keys and values are written in place at `starts .. starts + lengths`; padding inputs write nothing and
        change nothing, whatever they hold. A row of length 0 writes nothing and its result means nothing. `span` bounds
        the positions that are read where shapes are fixed (at least the largest start + length; default the whole
        cache) and changes no result beyond rounding. Any slicing of a prompt into calls gives the same as one call.
        That rows fit their slots is the lease's business; rows that are not `KVRows` are a `StateError`.
        """
        states = self._advance(cache, rows, x, starts, lengths, cache.positions if span is None else span)
        if lengths is None:
            last = states[:, -1]
        else:
            last = states[torch.arange(x.shape[0], device=x.device), (lengths - 1).clamp(min=0)]
        hidden: Tensor = self.model.norm(last)
        return hidden

    def forward_all(
        self,
        cache: TalkerCache,
        rows: KVRows,
        x: Tensor,
        starts: Tensor,
        lengths: Tensor | None = None,
        *,
        span: int | None = None,
    ) -> Tensor:
        """As `forward`, but the hidden states of all positions, [B, T, D]; for verification."""
        states = self._advance(cache, rows, x, starts, lengths, cache.positions if span is None else span)
        hidden: Tensor = self.model.norm(states)
        return hidden

    def forward_whole(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Whole sequences without a cache, usable under autograd: `x` [B, T, D] -> hidden [B, T, D].

        `valid` bool [B, T] marks the real positions (padding may stand on either side); None: all.
        """
        if valid is None:
            valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        positions = (valid.long().cumsum(1) - 1).clamp(min=0)
        hidden: Tensor = self.model.norm(self._run(x, positions, OwnKeyValues(causal_visibility(valid))))
        return hidden

    def first_code_logits(self, hidden: Tensor) -> Tensor:
        """`hidden` [B, D] -> logits of codebook 0, [B, vocab_size], float32 (float64 for float64 weights)."""
        logits: Tensor = self.codec_head(hidden)
        return logits.to(wide_dtype(logits))

    def embed_text(self, tokens: Tensor) -> Tensor:
        """Text vectors: `tokens` int64 [..., ids per token] -> [..., D]. One BPE id, or one phone id for each table."""
        if isinstance(self.config.text, PhoneTextConfig):
            parts = [table(tokens[..., j]) for j, table in enumerate(self.model.phone_embedding)]
            return torch.stack(parts, dim=-2).sum(dim=-2)
        vectors = self.model.text_embedding(tokens[..., 0]).to(self.codec_head.weight.dtype)
        projected: Tensor = self.text_projection(vectors)
        return projected

    def _advance(
        self, cache: TalkerCache, rows: KVRows, x: Tensor, starts: Tensor, lengths: Tensor | None, span: int
    ) -> Tensor:
        require_kv_rows(rows)
        T = x.shape[1]
        counts = torch.full_like(starts, T) if lengths is None else lengths
        window = open_window(cache, rows, starts, counts, steps=T, span=span)
        return self._run(x, starts[:, None] + torch.arange(T, device=x.device), window)

    def _run(self, x: Tensor, positions: Tensor, kv: KeyValues) -> Tensor:
        stack: TransformerConfig = self.config.stack
        by = rotation(positions, inverse_frequencies(stack.head_dim, stack.rope_theta, x.device), wide_dtype(x))
        return self.model.layers.run(x, by=by, kv=kv)
