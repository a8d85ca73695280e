"""Tiny talkers and code predictors with random weights, scaled up so that outputs depend on inputs. For tests only."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from legato.config.model import (
    BpeTextConfig,
    CodecIds,
    CodePredictorConfig,
    DurationConfig,
    PhoneTextConfig,
    TalkerConfig,
    TextConfig,
    TransformerConfig,
)
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.talker.backbone import Talker

BPE = BpeTextConfig(
    text_vocab_size=40,
    text_hidden_size=24,
    pad_id=1,
    bos_id=2,
    eos_id=3,
    im_start_id=4,
    im_end_id=5,
    assistant_id=6,
    newline_id=7,
)
PHONES = PhoneTextConfig(
    front_end="test",
    phones=tuple("abcdefghij"),
    tables=4,
    audio_delay_frames=3,
    look_ahead_phones=2,
    duration=DurationConfig(hidden_size=8, num_layers=1, kernel_size=3),
)
Module = TypeVar("Module", bound=nn.Module)
CODES = 32
CODEBOOKS = 5


def stack(width: int = 32, *, layers: int = 3) -> TransformerConfig:
    """Four query heads and two KV heads."""
    return TransformerConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        max_position_embeddings=256,
    )


def talker_config(text: TextConfig = BPE, *, feedback_codebooks: int = CODEBOOKS) -> TalkerConfig:
    """32 codes, then pad, bos and eos."""
    return TalkerConfig(
        stack=stack(),
        vocab_size=CODES + 8,
        num_codebooks=CODEBOOKS,
        feedback_codebooks=feedback_codebooks,
        text=text,
        ids=CodecIds(pad=CODES, bos=CODES + 1, eos=CODES + 2),
        language_ids=None,
        speakers={},
        dialects={},
    )


def make_talker(config: TalkerConfig | None = None, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Talker:
    """A talker whose attention is far from uniform."""
    torch.manual_seed(seed)
    return scaled(Talker(config or talker_config())).to(dtype)


def make_predictor(
    *, talker_width: int = 32, width: int = 32, dtype: torch.dtype = torch.float32, seed: int = 1
) -> CodePredictor:
    """A predictor; with another width than the talker's it has a projection."""
    torch.manual_seed(seed)
    config = CodePredictorConfig(stack=stack(width, layers=2), codebook_size=CODES, num_codebooks=CODEBOOKS)
    return scaled(CodePredictor(config, talker_width)).to(dtype)


def scaled(module: Module) -> Module:
    """Weights of norms around 1, others twice the usual size."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(2.0)
    return module.eval()
