"""The code predictor: the LM over the codebooks of one frame. Parameter names follow `talker.code_predictor.`.

Holds weights only, including the embeddings of the residual codes, which are also part of the talker's next input. It
has no state: every frame starts from an empty scratch.
"""

from __future__ import annotations

from torch import Tensor, nn

from legato.config.model import CodePredictorConfig
from legato.models.layers.attention import wide_dtype
from legato.models.layers.decoder_layer import DecoderLayer, KVView, Layers
from legato.models.layers.linear import Linear
from legato.models.layers.norm import RMSNorm
from legato.models.layers.rope import RopeTables


class CodePredictorModel(nn.Module):
    """The parameters `talker.code_predictor.model.*`. Embedding j is for codebook j + 1 and has the talker's width."""

    def __init__(self, config: CodePredictorConfig, talker_width: int) -> None:
        super().__init__()
        stack = config.stack
        self.layers = Layers(DecoderLayer(stack) for _ in range(stack.num_hidden_layers))
        self.norm = RMSNorm(stack.hidden_size, stack.rms_norm_eps)
        self.codec_embedding = nn.ModuleList(
            nn.Embedding(config.codebook_size, talker_width) for _ in range(config.num_codebooks - 1)
        )


class CodePredictor(nn.Module):
    """Layers, embeddings and heads of the predictor; see `predict_frame` and `frame_logits_uncached`."""

    def __init__(self, config: CodePredictorConfig, talker_width: int) -> None:
        super().__init__()
        self.config = config
        self.model = CodePredictorModel(config, talker_width)
        self.lm_head = nn.ModuleList(
            Linear(config.stack.hidden_size, config.codebook_size, bias=False) for _ in range(config.num_codebooks - 1)
        )
        self.small_to_mtp_projection: nn.Module = (
            Linear(talker_width, config.stack.hidden_size)
            if talker_width != config.stack.hidden_size
            else nn.Identity()
        )

    def forward(self, x: Tensor, *, rope: RopeTables, kv: KVView) -> Tensor:
        """Inputs `x` [B, T, talker width] -> post-final-norm hidden states [B, T, D]."""
        states = self.model.layers.run(self.small_to_mtp_projection(x), rope=rope, kv=kv)
        hidden: Tensor = self.model.norm(states)
        return hidden

    def logits(self, hidden: Tensor, residual: int) -> Tensor:
        """`hidden` [..., D] -> float32 logits [..., codebook_size] of codebook `residual` + 1."""
        logits: Tensor = self.lm_head[residual](hidden)
        return logits.to(wide_dtype(logits))
