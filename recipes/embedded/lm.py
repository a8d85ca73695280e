"""Talker and code predictor as they are trained: Legato's own modules, whole sequences, no cache.

Owns the two modules. One sequence, position by position (k = the audio's delay in frames): row 0 the speaker's row of
the codec embedding; rows 1..k text and pad; row k+1 text and bos, whose hidden state gives frame 0; then text and the
frame before, of which only the first codebook is fed back. Past the end of the track the text is the end token.
"""

from __future__ import annotations

import torch
from lm_data import Batch
from sizes import BOOK_SIZE, PREDICTOR, TALKER
from torch import Tensor, nn
from torch.nn import functional

from legato.models.code_predictor.predict import predict_frame_whole_logits
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.layers.norm import RMSNorm
from legato.models.talker.backbone import Talker

RESIDUAL_WEIGHTS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.25, 0.25)
INITIAL_SPREAD = 0.03
FRAME_DROPOUT = 0.2
CODE_NOISE = 0.03
PREDICTED_SHARE = 0.4


class TrainingNorm(RMSNorm):
    """The same norm with its products in bfloat16, where autocast is on: a third of a CPU step's time otherwise."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return x.bfloat16() * scale.bfloat16() * self.weight.bfloat16()


class VoiceLM(nn.Module):
    """`talker` and `talker.code_predictor` under their official names."""

    def __init__(self) -> None:
        super().__init__()
        self.talker = Talker(TALKER)
        self.code_predictor = CodePredictor(PREDICTOR, TALKER.stack.hidden_size)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0.0, INITIAL_SPREAD)
        for module in self.modules():
            if isinstance(module, RMSNorm):
                module.__class__ = TrainingNorm

    @torch.no_grad()
    def start_from_tables(self, books: Tensor) -> None:
        """Give codes that sound alike like rows from the start: `books` [8, 512, 128] are the codec's own tables.

        Half-whitened, so that loudness does not drown the rest, and turned at random into the width of each layer.
        """
        embeddings = [self.talker.model.codec_embedding, *self.code_predictor.model.codec_embedding]
        heads = [self.talker.codec_head, *self.code_predictor.lm_head]
        for book, embedding, head in zip(books, embeddings, heads, strict=True):
            points = book - book.mean(0)
            points = points / points.std(0).clamp(min=1e-4).sqrt()
            for table in (embedding.weight, head.weight):
                turn = nn.init.orthogonal_(torch.empty(table.shape[1], points.shape[1])).T
                rows = points @ turn.to(points)
                table[:BOOK_SIZE] = rows * (INITIAL_SPREAD / rows.std())

    def named_tensors(self) -> dict[str, Tensor]:
        """The weights by their names in the checkpoint."""
        return {
            **{f"talker.{name}": tensor for name, tensor in self.talker.state_dict().items()},
            **{f"talker.code_predictor.{name}": tensor for name, tensor in self.code_predictor.state_dict().items()},
        }

    def hidden(self, batch: Batch) -> Tensor:
        """[B, P, D]; in training, frames fed back are dropped or replaced by chance."""
        code, keep = batch.code, torch.ones_like(batch.code, dtype=torch.float32)
        if self.training:
            chance = torch.rand(code.shape, device=code.device)
            noise = batch.is_frame & (chance < CODE_NOISE)
            code = torch.where(noise, torch.randint_like(code, BOOK_SIZE), code)
            keep = (~(batch.is_frame & (chance > 1 - FRAME_DROPOUT))).float()
        x = self.talker.model.codec_embedding(code) * keep[..., None]
        x = x + self.talker.embed_text(batch.text) * batch.has_text[..., None]
        return self.talker.forward_whole(x, batch.valid)

    def residual_logits(self, hidden: Tensor, frames: Tensor) -> list[Tensor]:
        """`hidden` [N, D], `frames` [N, 8] -> logits [N, 512] of codebooks 1..7, each given the ones before."""
        logits = predict_frame_whole_logits(self.code_predictor, self.talker.model.codec_embedding, hidden, frames)
        return list(logits.unbind(1))

    def losses(self, batch: Batch) -> list[Tensor]:
        """Cross-entropies of codebooks 0..7; in training the residual ones on a random share of the frames."""
        hidden = self.hidden(batch)[batch.predicts]
        frames = batch.frames[batch.predicts]
        logits = self.talker.first_code_logits(hidden)[:, :BOOK_SIZE]
        found = [functional.cross_entropy(logits, frames[:, 0])]
        if self.training:
            chosen = torch.randperm(len(hidden), device=hidden.device)[: int(len(hidden) * PREDICTED_SHARE)]
            hidden, frames = hidden[chosen], frames[chosen]
        for j, residual in enumerate(self.residual_logits(hidden, frames)):
            found.append(functional.cross_entropy(residual, frames[:, j + 1]))
        return found

    def weighed(self, losses: list[Tensor]) -> Tensor:
        """The training loss."""
        total = losses[0]
        for weight, loss in zip(RESIDUAL_WEIGHTS, losses[1:], strict=True):
            total = total + weight * loss
        return total
