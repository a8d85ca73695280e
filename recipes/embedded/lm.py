"""Talker and code predictor for training: Legato's modules on whole sequences, without KV cache.

Layout of a sequence (k = audio delay in frames): position 0 has the speaker's row of the codec embedding; positions
1..k text and pad; position k+1 text and BOS, which predicts frame 0; later positions text and codebook 0 of the
previous frame. After the end of the track the text is the end token.
"""

from __future__ import annotations

import torch
from lm_data import Batch
from sizes import CODEBOOK_SIZE, PREDICTOR, TALKER
from torch import Tensor, nn
from torch.nn import functional

from legato.models.code_predictor.predict import frame_logits_uncached
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.layers.norm import RMSNorm
from legato.models.talker.backbone import Talker

RESIDUAL_WEIGHTS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.25, 0.25)
INIT_STD = 0.03
FRAME_DROPOUT = 0.2
CODE_NOISE = 0.03
PREDICTED_SHARE = 0.4


class TrainingRMSNorm(RMSNorm):
    """RMSNorm that multiplies in bfloat16 under autocast. In float32 it would take a third of a CPU step."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return x.bfloat16() * scale.bfloat16() * self.weight.bfloat16()


class VoiceLM(nn.Module):
    """Talker and code predictor with their official parameter names."""

    def __init__(self) -> None:
        super().__init__()
        self.talker = Talker(TALKER)
        self.code_predictor = CodePredictor(PREDICTOR, TALKER.stack.hidden_size)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0.0, INIT_STD)
        for module in self.modules():
            if isinstance(module, RMSNorm):
                module.__class__ = TrainingRMSNorm

    @torch.no_grad()
    def init_from_tables(self, codebooks: Tensor) -> None:
        """Initialize embeddings and heads from the codec's `codebooks` [8, 512, 128]: similar codes get similar rows.

        The entries are half-whitened, so that loudness does not dominate, and randomly rotated to the layer width.
        """
        embeddings = [self.talker.model.codec_embedding, *self.code_predictor.model.codec_embedding]
        heads = [self.talker.codec_head, *self.code_predictor.lm_head]
        for codebook, embedding, head in zip(codebooks, embeddings, heads, strict=True):
            points = codebook - codebook.mean(0)
            points = points / points.std(0).clamp(min=1e-4).sqrt()
            for table in (embedding.weight, head.weight):
                rotation = nn.init.orthogonal_(torch.empty(table.shape[1], points.shape[1])).T
                rows = points @ rotation.to(points)
                table[:CODEBOOK_SIZE] = rows * (INIT_STD / rows.std())

    def named_tensors(self) -> dict[str, Tensor]:
        """The weights by their checkpoint names."""
        return {
            **{f"talker.{name}": tensor for name, tensor in self.talker.state_dict().items()},
            **{f"talker.code_predictor.{name}": tensor for name, tensor in self.code_predictor.state_dict().items()},
        }

    def hidden(self, batch: Batch) -> Tensor:
        """Hidden states [B, P, D]. In training, fed-back codes are randomly dropped or replaced."""
        code, keep = batch.code, torch.ones_like(batch.code, dtype=torch.float32)
        if self.training:
            chance = torch.rand(code.shape, device=code.device)
            noise = batch.is_frame & (chance < CODE_NOISE)
            code = torch.where(noise, torch.randint_like(code, CODEBOOK_SIZE), code)
            keep = (~(batch.is_frame & (chance > 1 - FRAME_DROPOUT))).float()
        x = self.talker.model.codec_embedding(code) * keep[..., None]
        x = x + self.talker.embed_text(batch.text) * batch.has_text[..., None]
        return self.talker.forward_uncached(x, batch.valid)

    def residual_logits(self, hidden: Tensor, frames: Tensor) -> list[Tensor]:
        """`hidden` [N, D], `frames` [N, 8] -> logits [N, 512] of codebooks 1..7, each given the previous ones."""
        logits = frame_logits_uncached(self.code_predictor, self.talker.model.codec_embedding, hidden, frames)
        return list(logits.unbind(1))

    def losses(self, batch: Batch) -> list[Tensor]:
        """Cross-entropies of codebooks 0..7. In training the residual ones use a random subset of the frames."""
        hidden = self.hidden(batch)[batch.predicts]
        frames = batch.frames[batch.predicts]
        logits = self.talker.first_code_logits(hidden)[:, :CODEBOOK_SIZE]
        found = [functional.cross_entropy(logits, frames[:, 0])]
        if self.training:
            chosen = torch.randperm(len(hidden), device=hidden.device)[: int(len(hidden) * PREDICTED_SHARE)]
            hidden, frames = hidden[chosen], frames[chosen]
        for j, residual in enumerate(self.residual_logits(hidden, frames)):
            found.append(functional.cross_entropy(residual, frames[:, j + 1]))
        return found

    def weighted_loss(self, losses: list[Tensor]) -> Tensor:
        """Weighted sum of the losses: the training loss."""
        total = losses[0]
        for weight, loss in zip(RESIDUAL_WEIGHTS, losses[1:], strict=True):
            total = total + weight * loss
        return total
