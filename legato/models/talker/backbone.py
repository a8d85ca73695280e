"""The talker: the LM over time, one position per frame. Parameter names follow `talker.` of a checkpoint.

Holds weights only. The cache, the rows and their positions are arguments.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.config.model import BpeTextConfig, PhoneTextConfig, TalkerConfig, TransformerConfig
from legato.models.layers.attention import wide_dtype
from legato.models.layers.decoder_layer import DecoderLayer, KVView, Layers, UncachedKV, causal_visibility
from legato.models.layers.linear import Linear
from legato.models.layers.norm import RMSNorm
from legato.models.layers.rope import inverse_frequencies, rope_tables
from legato.models.talker.state import KVRows, TalkerCache, open_kv_view, require_kv_rows


class TextProjection(nn.Module):
    """`fc2(silu(fc1(x)))`: text embedding width to talker width."""

    def __init__(self, text_width: int, width: int) -> None:
        super().__init__()
        self.linear_fc1 = Linear(text_width, text_width)
        self.linear_fc2 = Linear(text_width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., text width] -> [..., D]."""
        y: Tensor = self.linear_fc2(functional.silu(self.linear_fc1(x)))
        return y


class TalkerModel(nn.Module):
    """The parameters `talker.model.*`: layers, final norm, and the embeddings of codes and text."""

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
    """Input vectors to hidden states. `forward` uses a KV cache, `forward_uncached` does not."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        self.model = TalkerModel(config)
        self.codec_head = Linear(config.stack.hidden_size, config.vocab_size, bias=False)
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
        """Advance each row by its inputs; returns the post-final-norm hidden state [B, D] of its last valid position.

        `x` [B, T, D]; `starts` int64 [B] position of each row's first input; `lengths` int64 [B] number of valid inputs
        (None: all T). Keys and values are written in place at `starts` to `starts + lengths`. Padding inputs write
        nothing and affect nothing, whatever they hold. A row of length 0 writes nothing and its result has no meaning.
        `span`: an upper bound of the positions read where shapes are fixed (at least the largest start + length;
        default: the whole cache); it changes results by rounding at most. Any split of a prompt into calls gives the
        same result as one call. The caller makes sure that rows fit their slots; rows that are not `KVRows` are a
        `StateError`.
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
        """Like `forward`, but returns the hidden states of all positions, [B, T, D]. For verification."""
        states = self._advance(cache, rows, x, starts, lengths, cache.positions if span is None else span)
        hidden: Tensor = self.model.norm(states)
        return hidden

    def forward_uncached(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Whole sequences without a cache, usable under autograd: `x` [B, T, D] -> hidden [B, T, D].

        `valid` bool [B, T] marks the real positions (padding may be on either side); None: all.
        """
        if valid is None:
            valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        positions = (valid.long().cumsum(1) - 1).clamp(min=0)
        hidden: Tensor = self.model.norm(self._run(x, positions, UncachedKV(causal_visibility(valid))))
        return hidden

    def first_code_logits(self, hidden: Tensor) -> Tensor:
        """`hidden` [B, D] -> logits of codebook 0, [B, vocab_size], float32 (float64 for float64 weights)."""
        logits: Tensor = self.codec_head(hidden)
        return logits.to(wide_dtype(logits))

    def embed_text(self, tokens: Tensor) -> Tensor:
        """Embed text tokens int64 [..., ids per token] -> [..., D]: one BPE id, or one phone id per phone table."""
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
        window = open_kv_view(cache, rows, starts, counts, steps=T, span=span)
        return self._run(x, starts[:, None] + torch.arange(T, device=x.device), window)

    def _run(self, x: Tensor, positions: Tensor, kv: KVView) -> Tensor:
        stack: TransformerConfig = self.config.stack
        rope = rope_tables(positions, inverse_frequencies(stack.head_dim, stack.rope_theta, x.device), wide_dtype(x))
        return self.model.layers.run(x, rope=rope, kv=kv)
