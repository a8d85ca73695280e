"""Sizes of the embedded voice's talker, code predictor and duration predictor, and its special ids. Data only."""

from __future__ import annotations

from legato.config.model import (
    CodecIds,
    CodePredictorConfig,
    DurationConfig,
    PhoneTextConfig,
    TalkerConfig,
    TransformerConfig,
)
from legato.text.english.phones import INVENTORY

SPEAKERS = ("heart", "michael")
NUM_CODEBOOKS = 8
CODEBOOK_SIZE = 512
PAD, BOS, EOS, FIRST_SPEAKER = 512, 513, 514, 515
VOCABULARY = 576
TABLES = 4
DELAY_FRAMES = 3
FEEDBACK_CODEBOOKS = 1
LOOK_AHEAD_PHONES = 6
DURATION = DurationConfig(hidden_size=96, num_layers=3, kernel_size=7)


def _stack(width: int, layers: int, head_dim: int) -> TransformerConfig:
    return TransformerConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=head_dim,
        rms_norm_eps=1e-6,
        rope_theta=10_000.0,
        max_position_embeddings=2_048,
    )


TALKER = TalkerConfig(
    stack=_stack(256, 5, 64),
    vocab_size=VOCABULARY,
    num_codebooks=NUM_CODEBOOKS,
    feedback_codebooks=FEEDBACK_CODEBOOKS,
    text=PhoneTextConfig(
        front_end="english_phones",
        phones=INVENTORY,
        tables=TABLES,
        audio_delay_frames=DELAY_FRAMES,
        look_ahead_phones=LOOK_AHEAD_PHONES,
        duration=DURATION,
    ),
    ids=CodecIds(pad=PAD, bos=BOS, eos=EOS),
    language_ids=None,
    speakers={name: FIRST_SPEAKER + row for row, name in enumerate(SPEAKERS)},
    dialects={},
)
PREDICTOR = CodePredictorConfig(stack=_stack(192, 2, 48), codebook_size=CODEBOOK_SIZE, num_codebooks=NUM_CODEBOOKS)
