"""Inputs of the talker: a prompt plan, or a frame and the next text token, as input vectors.

The residual codes are embedded with the code predictor's embeddings, as in the official models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from legato.errors import StateError
from legato.models.code_predictor.predictor import CodePredictor
from legato.models.talker.backbone import Talker
from legato.types import PromptPlan, TextToken


def embed_prompt(
    talker: Talker,
    predictor: CodePredictor,
    plan: PromptPlan,
    *,
    speaker_vector: Tensor | None = None,
    reference_codes: Tensor | None = None,
) -> Tensor:
    """The input vectors of a prompt, [P, D]: for each `PromptRow`, the sum of the embeddings of its parts.

    `speaker_vector` [D] and `reference_codes` int64 [T, Q] belong to the voice. Raises `StateError` if the plan uses
    one that is None.
    """
    weight = talker.model.codec_embedding.weight
    x = torch.zeros(len(plan.rows), weight.shape[1], dtype=weight.dtype, device=weight.device)
    texts = [(index, row.text) for index, row in enumerate(plan.rows) if row.text is not None]
    codes = [(index, row.code) for index, row in enumerate(plan.rows) if row.code is not None]
    frames = [(index, row.reference_frame) for index, row in enumerate(plan.rows) if row.reference_frame is not None]
    speakers = [index for index, row in enumerate(plan.rows) if row.speaker_vector]
    if texts:
        x[[index for index, _ in texts]] += text_vectors(talker, [token for _, token in texts])
    if codes:
        x[[index for index, _ in codes]] += talker.model.codec_embedding(_ids([code for _, code in codes], x))
    if frames:
        if reference_codes is None:
            raise StateError("the prompt plan contains reference frames, but the voice has no reference codes")
        chosen = reference_codes.to(x.device)[_ids([frame for _, frame in frames], x)]
        x[[index for index, _ in frames]] += frame_vectors(talker, predictor, chosen)
    if speakers:
        if speaker_vector is None:
            raise StateError("the prompt plan contains a speaker vector, but the voice has none")
        x[speakers] += speaker_vector.to(x)
    return x


def text_vectors(talker: Talker, tokens: Sequence[TextToken]) -> Tensor:
    """Embed text tokens: [len(tokens), D]."""
    return talker.embed_text(torch.tensor(list(tokens), dtype=torch.int64, device=talker.codec_head.weight.device))


def frame_vectors(talker: Talker, predictor: CodePredictor, frames: Tensor) -> Tensor:
    """Embed frames int64 [B, Q]: the sum over the `feedback_codebooks` first codebooks, [B, D]."""
    parts = [talker.model.codec_embedding(frames[:, 0])]
    parts += [predictor.model.codec_embedding[j](frames[:, j + 1]) for j in range(talker.config.feedback_codebooks - 1)]
    return torch.stack(parts, dim=1).sum(dim=1)


def next_input(talker: Talker, predictor: CodePredictor, frames: Tensor, text: Tensor) -> Tensor:
    """The talker's next input, [B, D]: `frames` int64 [B, Q] plus text tokens int64 [B, ids per token]."""
    return frame_vectors(talker, predictor, frames) + talker.embed_text(text)


def _ids(values: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=like.device)
