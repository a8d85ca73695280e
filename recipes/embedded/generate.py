"""Text tokens -> codes with the training modules, many sentences at once and without a cache: for judging a training
that still runs, and for tracks that no text front end made (the teacher's own durations).

Owns nothing. What is shipped is judged through Legato itself (`evaluate.py`); this is the slow, plain way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lm import VoiceLM
from lm_data import Example, collate
from sizes import BOOK_SIZE, BOOKS, DELAY_FRAMES
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
    """Codes int64 [T, 8] for each (speaker, tokens [T, 4])."""
    generator = torch.Generator().manual_seed(seed)
    blank = [
        Example(s, tokens.to(torch.int16), torch.zeros(len(tokens), BOOKS, dtype=torch.int16)) for s, tokens in tracks
    ]
    batch = collate(blank)
    text = model.talker.embed_text(batch.text) * batch.has_text[..., None]
    code = batch.code.clone()
    frames = torch.zeros(len(tracks), batch.code.shape[1], BOOKS, dtype=torch.int64)
    for position in range(DELAY_FRAMES + 1, batch.code.shape[1]):
        x = text[:, : position + 1] + model.talker.model.codec_embedding(code[:, : position + 1])
        hidden = model.talker.forward_whole(x)[:, -1]
        logits = model.talker.first_code_logits(hidden)[:, :BOOK_SIZE]
        frames[:, position, 0] = _draw(logits, temperature, top_k, generator)
        for book in range(1, BOOKS):
            residual = model.residual_logits(hidden, frames[:, position])[book - 1]
            frames[:, position, book] = _draw(residual, residual_temperature, top_k, generator)
        if position + 1 < batch.code.shape[1]:
            code[:, position + 1] = frames[:, position, 0]
    first = DELAY_FRAMES + 1
    return [frames[row, first : first + len(tokens)] for row, (_, tokens) in enumerate(tracks)]


def _draw(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> Tensor:
    if temperature <= 0:
        return logits.argmax(-1)
    values, places = logits.float().topk(top_k, dim=-1)
    chosen = torch.multinomial((values / temperature).softmax(-1), 1, generator=generator)
    return places.gather(1, chosen)[:, 0]
