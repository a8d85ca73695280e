"""Sentences as the talker is trained on them: text tokens and codes, at several phases of the frame grid.

Owns the cache of encoded sentences, one file a phase and store (`lm/<store>-<phase>.pt`), extended as the stores grow.
A sentence shifted by 10 ms has other codes for the same speech: eight phases make eight sentences of one. Knows no
model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import places
import torch
from alignment import align, quarter_track
from codec_tables import Tables
from features import stacked
from sizes import BOOKS, BOS, DELAY_FRAMES, FIRST_SPEAKER, PAD, SPEAKERS, TABLES
from speech import FRAME_SAMPLES, LEAD_SAMPLES, Sentence, Store, stores
from torch import Tensor

FOLDER = places.CACHE / "lm"
PHASES = 8
PHASE_SAMPLES = FRAME_SAMPLES // PHASES
HELD_OUT_SENTENCES = 40
"""The last so many of the first store are kept from training, to watch the loss on."""


@dataclass(frozen=True)
class Example:
    """One sentence at one phase: `tokens` int16 [T, 4], `codes` int16 [T, 8]."""

    speaker: int
    tokens: Tensor
    codes: Tensor


def encode(store: Store, sentence: Sentence, tables: Tables, phase: int) -> Example:
    """The sentence with its first `phase * PHASE_SAMPLES` samples cut off (they are silence)."""
    shift = phase * PHASE_SAMPLES
    wave = store.wave(sentence)
    wave = np.concatenate([wave[shift:], np.zeros(shift, np.float32)])
    codes = tables.encode(stacked(torch.from_numpy(wave))).to(torch.int16)
    aligned = align(sentence.phonemes, sentence.durations_25ms)
    tokens = quarter_track(aligned, lead_samples=LEAD_SAMPLES - shift, frames=len(codes))
    return Example(SPEAKERS.index(sentence.speaker), torch.tensor(tokens, dtype=torch.int16), codes)


def load_examples(phases: Sequence[int], limit_new: int = 1_000_000) -> tuple[list[Example], list[Example]]:
    """(training, held out) of all stores at `phases`; encodes what is new and keeps it."""
    tables = Tables.load()
    FOLDER.mkdir(parents=True, exist_ok=True)
    training: list[Example] = []
    held: list[Example] = []
    for store in stores():
        if store.name.startswith("heldout"):
            continue
        for phase in phases:
            found = _extended(store, tables, phase, limit_new)
            if store.name == "heart-first":
                held += found[:HELD_OUT_SENTENCES] if phase == 0 else []
                found = found[HELD_OUT_SENTENCES:]
            training += found
    return training, held


def _extended(store: Store, tables: Tables, phase: int, limit_new: int) -> list[Example]:
    path = FOLDER / f"{store.name}-{phase}.pt"
    kept: list[tuple[int, Tensor, Tensor]] = torch.load(path) if path.exists() else []
    examples = [Example(*row) for row in kept]
    new = store.sentences(skip=len(kept))[:limit_new]
    for sentence in new:
        examples.append(encode(store, sentence, tables, phase))
    if new:
        torch.save([(e.speaker, e.tokens, e.codes) for e in examples], path)
        print(f"{path.name}: {len(new)} sentences more", flush=True)
    return examples


@dataclass(frozen=True)
class Batch:
    """Rows of the talker's input and what each is to predict; see the layout in `lm.py`.

    `text` [B, P, 4], `has_text` and `valid` bool [B, P], `code` [B, P] (a row of the codec embedding), `is_frame` bool
    [B, P] (the code is a fed-back frame), `predicts` bool [B, P], `frames` [B, P, 8].
    """

    text: Tensor
    has_text: Tensor
    code: Tensor
    is_frame: Tensor
    predicts: Tensor
    frames: Tensor
    valid: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(**{name: getattr(self, name).to(device) for name in self.__dataclass_fields__})


def jittered(tokens: Tensor, chance: float) -> Tensor:
    """`tokens` [T, 4] with phone boundaries moved a quarter either way by chance; no phone is lost.

    The talker is to bear with lengths that are guessed, as they are at run time.
    """
    flat = tokens.reshape(-1).clone()
    before, here = flat[:-1], flat[1:]
    boundary = torch.nonzero(before != here)[:, 0] + 1
    boundary = boundary[(boundary > 1) & (boundary < len(flat) - 1)]
    draw = torch.rand(len(boundary))
    source = flat.clone()
    later = boundary[(draw < chance) & (source[boundary] == source[boundary + 1])]
    earlier = boundary[(draw > 1 - chance) & (source[boundary - 1] == source[boundary - 2])]
    flat[later] = source[later - 1]
    flat[earlier - 1] = source[earlier]
    return flat.reshape(tokens.shape)


def collate(examples: Sequence[Example], jitter: float = 0.0) -> Batch:
    """Row 0 the speaker; then text with pad; row k+1 with bos predicts frame 0; then text with the frame before."""
    k, count = DELAY_FRAMES, len(examples)
    positions = max(len(example.codes) for example in examples) + k + 1
    text = torch.zeros(count, positions, TABLES, dtype=torch.int64)
    code = torch.full((count, positions), PAD)
    flags = torch.zeros(4, count, positions, dtype=torch.bool)
    has_text, is_frame, predicts, valid = flags
    frames = torch.zeros(count, positions, BOOKS, dtype=torch.int64)
    has_text[:, 1:] = True
    for row, example in enumerate(examples):
        T, codes = len(example.codes), example.codes.long()
        text[row, 1 : 1 + T] = jittered(example.tokens, jitter).long() if jitter else example.tokens.long()
        code[row, 0], code[row, k + 1] = FIRST_SPEAKER + example.speaker, BOS
        code[row, k + 2 : k + 1 + T] = codes[:-1, 0]
        is_frame[row, k + 2 : k + 1 + T] = True
        frames[row, k + 1 : k + 1 + T] = codes
        predicts[row, k + 1 : k + 1 + T] = True
        valid[row, : k + 1 + T] = True
    return Batch(text, has_text, code, is_frame, predicts, frames, valid)


def joined(examples: Sequence[Example]) -> Example:
    """Sentences of one speaker as one long one; of the silence between two, three frames are cut."""
    last = len(examples) - 1
    spans = [slice(1 if i else 0, len(e.codes) - (2 if i < last else 0)) for i, e in enumerate(examples)]
    tokens = torch.cat([example.tokens[span] for example, span in zip(examples, spans, strict=True)])
    codes = torch.cat([example.codes[span] for example, span in zip(examples, spans, strict=True)])
    return Example(examples[0].speaker, tokens, codes)


def lengthened(order: Sequence[Example]) -> list[Example]:
    """The same sentences, a third of them joined to long sequences: positions must be seen to be spoken at."""
    made: list[Example] = []
    at = 0
    while at < len(order):
        wanted = random.choices((1, 2, 3, 5), (70, 14, 10, 6))[0]
        group = list(order[at : at + wanted])
        group = [example for example in group if example.speaker == group[0].speaker]
        made.append(joined(group))
        at += wanted
    return made


def balanced(examples: Sequence[Example]) -> list[Example]:
    """Every example once, those of a scarcer speaker up to four times."""
    by_speaker = [[e for e in examples if e.speaker == speaker] for speaker in range(len(SPEAKERS))]
    most = max(len(group) for group in by_speaker)
    return [e for group in by_speaker if group for _ in range(min(4, max(1, round(most / len(group))))) for e in group]


def epochs(examples: Sequence[Example], frames_a_batch: int) -> list[list[Example]]:
    """One pass in random order, batches of like lengths with about `frames_a_batch` positions each."""
    order = balanced(examples)
    random.shuffle(order)
    order = lengthened(order)
    batches: list[list[Example]] = []
    for start in range(0, len(order), 512):
        pool = sorted(order[start : start + 512], key=lambda example: len(example.codes))
        batch: list[Example] = []
        for example in pool:
            if batch and (len(batch) + 1) * (len(example.codes) + 4) > frames_a_batch:
                batches.append(batch)
                batch = []
            batch.append(example)
        batches.append(batch)
    random.shuffle(batches)
    return batches
