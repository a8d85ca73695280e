"""Generate codes with the training modules: batched, without a KV cache (slow).

Used to evaluate a running training and tracks with the teacher's durations. The shipped voice is evaluated through
Legato (`evaluate.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lm import VoiceLM
from lm_data import Example, collate
from sizes import CODEBOOK_SIZE, DELAY_FRAMES, NUM_CODEBOOKS
from torch import Tensor


@torch.no_grad()
def generate(
    model: VoiceLM,
    tracks: Sequence[tuple[int, Tensor]],
    *,
    temperature: float = 0.5,
    top_k: int = 20,
    residual_temperature: float = 0.0,
    seed: int = 1,
) -> list[Tensor]:
    """Generate codes int64 [T, 8] for each (speaker, tokens [T, 4])."""
    generator = torch.Generator().manual_seed(seed)
    placeholders = []
    for speaker, tokens in tracks:
        no_codes = torch.zeros(len(tokens), NUM_CODEBOOKS, dtype=torch.int16)
        placeholders.append(Example(speaker, tokens.to(torch.int16), no_codes))
    batch = collate(placeholders)
    text = model.talker.embed_text(batch.text) * batch.has_text[..., None]
    code = batch.code.clone()
    frames = torch.zeros(len(tracks), batch.code.shape[1], NUM_CODEBOOKS, dtype=torch.int64)
    for position in range(DELAY_FRAMES + 1, batch.code.shape[1]):
        x = text[:, : position + 1] + model.talker.model.codec_embedding(code[:, : position + 1])
        hidden = model.talker.forward_uncached(x)[:, -1]
        logits = model.talker.first_code_logits(hidden)[:, :CODEBOOK_SIZE]
        frames[:, position, 0] = _sample(logits, temperature, top_k, generator)
        for codebook in range(1, NUM_CODEBOOKS):
            residual = model.residual_logits(hidden, frames[:, position])[codebook - 1]
            frames[:, position, codebook] = _sample(residual, residual_temperature, top_k, generator)
        if position + 1 < batch.code.shape[1]:
            code[:, position + 1] = frames[:, position, 0]
    first = DELAY_FRAMES + 1
    return [frames[row, first : first + len(tokens)] for row, (_, tokens) in enumerate(tracks)]


def _sample(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> Tensor:
    if temperature <= 0:
        return logits.argmax(-1)
    values, indices = logits.float().topk(top_k, dim=-1)
    chosen = torch.multinomial((values / temperature).softmax(-1), 1, generator=generator)
    return indices.gather(1, chosen)[:, 0]
