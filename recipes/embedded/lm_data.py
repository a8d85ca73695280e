"""Training data of the talker: text tokens and codes of all sentences, at several phases of the frame grid.

A sentence shifted by 10 ms has different codes, so eight phases give eight examples per sentence. Encoded sentences are
cached in one file per phase and store (`lm/<store>-<phase>.pt`), to which new speech is appended.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import paths
import torch
from alignment import align, quarter_track
from codec_tables import Tables
from features import stacked
from sizes import BOS, DELAY_FRAMES, FIRST_SPEAKER, NUM_CODEBOOKS, PAD, SPEAKERS, TABLES
from speech import FRAME_SAMPLES, LEAD_SAMPLES, Sentence, SpeechStore, stores
from torch import Tensor

FOLDER = paths.CACHE / "lm"
PHASES = 8
PHASE_SAMPLES = FRAME_SAMPLES // PHASES
HELD_OUT_SENTENCES = 40
"""Number of sentences of the first store that are excluded from training, for the validation loss."""


@dataclass(frozen=True)
class Example:
    """One sentence at one phase: `tokens` int16 [T, 4], `codes` int16 [T, 8]."""

    speaker: int
    tokens: Tensor
    codes: Tensor


def encode(store: SpeechStore, sentence: Sentence, tables: Tables, phase: int) -> Example:
    """Encode the sentence without its first `phase * PHASE_SAMPLES` samples, which are silence."""
    shift = phase * PHASE_SAMPLES
    wave = store.wave(sentence)
    wave = np.concatenate([wave[shift:], np.zeros(shift, np.float32)])
    codes = tables.encode(stacked(torch.from_numpy(wave))).to(torch.int16)
    aligned = align(sentence.phonemes, sentence.durations_25ms)
    tokens = quarter_track(aligned, lead_samples=LEAD_SAMPLES - shift, frames=len(codes))
    return Example(SPEAKERS.index(sentence.speaker), torch.tensor(tokens, dtype=torch.int16), codes)


def load_examples(phases: Sequence[int], limit_new: int = 1_000_000) -> tuple[list[Example], list[Example]]:
    """Load (training, held-out) examples of all stores at `phases`. New sentences are encoded and cached."""
    tables = Tables.load()
    FOLDER.mkdir(parents=True, exist_ok=True)
    training: list[Example] = []
    held_out: list[Example] = []
    for store in stores():
        if store.name.startswith("heldout"):
            continue
        for phase in phases:
            examples = _load_store(store, tables, phase, limit_new)
            if store.name == "heart-first":
                if phase == 0:
                    held_out += examples[:HELD_OUT_SENTENCES]
                examples = examples[HELD_OUT_SENTENCES:]
            training += examples
    return training, held_out


def _load_store(store: SpeechStore, tables: Tables, phase: int, limit_new: int) -> list[Example]:
    """Cached examples of a store. At most `limit_new` new sentences are encoded and added to the cache."""
    path = FOLDER / f"{store.name}-{phase}.pt"
    cached: list[tuple[int, Tensor, Tensor]] = torch.load(path) if path.exists() else []
    examples = [Example(*row) for row in cached]
    new = store.sentences(skip=len(cached))[:limit_new]
    for sentence in new:
        examples.append(encode(store, sentence, tables, phase))
    if new:
        torch.save([(e.speaker, e.tokens, e.codes) for e in examples], path)
        print(f"{path.name}: {len(new)} new sentences", flush=True)
    return examples


@dataclass(frozen=True)
class Batch:
    """Talker inputs and targets; the layout is described in `lm.py`.

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


def jitter_boundaries(tokens: Tensor, chance: float) -> Tensor:
    """Randomly move phone boundaries of `tokens` [T, 4] by a quarter frame without losing a phone.

    Makes the talker robust against predicted durations, which are used at run time.
    """
    source = tokens.reshape(-1)
    jittered = source.clone()
    boundary = torch.nonzero(source[:-1] != source[1:])[:, 0] + 1  # first quarter of each phone
    boundary = boundary[(boundary > 1) & (boundary < len(source) - 1)]
    rand = torch.rand(len(boundary))
    # A phone gives up a quarter only if it has at least two.
    later = boundary[(rand < chance) & (source[boundary] == source[boundary + 1])]
    earlier = boundary[(rand > 1 - chance) & (source[boundary - 1] == source[boundary - 2])]
    jittered[later] = source[later - 1]
    jittered[earlier - 1] = source[earlier]
    return jittered.reshape(tokens.shape)


def collate(examples: Sequence[Example], jitter: float = 0.0) -> Batch:
    """Build a padded batch with the layout of `lm.py`."""
    k, count = DELAY_FRAMES, len(examples)
    positions = max(len(example.codes) for example in examples) + k + 1
    text = torch.zeros(count, positions, TABLES, dtype=torch.int64)
    code = torch.full((count, positions), PAD)
    flags = torch.zeros(4, count, positions, dtype=torch.bool)
    has_text, is_frame, predicts, valid = flags
    frames = torch.zeros(count, positions, NUM_CODEBOOKS, dtype=torch.int64)
    has_text[:, 1:] = True
    for row, example in enumerate(examples):
        T, codes = len(example.codes), example.codes.long()
        text[row, 1 : 1 + T] = jitter_boundaries(example.tokens, jitter).long() if jitter else example.tokens.long()
        code[row, 0], code[row, k + 1] = FIRST_SPEAKER + example.speaker, BOS
        code[row, k + 2 : k + 1 + T] = codes[:-1, 0]
        is_frame[row, k + 2 : k + 1 + T] = True
        frames[row, k + 1 : k + 1 + T] = codes
        predicts[row, k + 1 : k + 1 + T] = True
        valid[row, : k + 1 + T] = True
    return Batch(
        text=text,
        has_text=has_text,
        code=code,
        is_frame=is_frame,
        predicts=predicts,
        frames=frames,
        valid=valid,
    )


def join_examples(examples: Sequence[Example]) -> Example:
    """Join sentences of one speaker to one example. Three frames of silence are removed at each joint."""
    last = len(examples) - 1
    spans = [slice(1 if i else 0, len(e.codes) - (2 if i < last else 0)) for i, e in enumerate(examples)]
    tokens = torch.cat([example.tokens[span] for example, span in zip(examples, spans, strict=True)])
    codes = torch.cat([example.codes[span] for example, span in zip(examples, spans, strict=True)])
    return Example(examples[0].speaker, tokens, codes)


def join_some(order: Sequence[Example]) -> list[Example]:
    """Join about a third of the sentences to longer sequences, so that later positions are trained."""
    joined: list[Example] = []
    start = 0
    while start < len(order):
        count = random.choices((1, 2, 3, 5), (70, 14, 10, 6))[0]
        group = list(order[start : start + count])
        group = [example for example in group if example.speaker == group[0].speaker]
        joined.append(join_examples(group))
        start += count
    return joined


def balanced(examples: Sequence[Example]) -> list[Example]:
    """Repeat the examples of the speaker with less speech, up to four times."""
    by_speaker = [[e for e in examples if e.speaker == speaker] for speaker in range(len(SPEAKERS))]
    most = max(len(group) for group in by_speaker)
    return [e for group in by_speaker if group for _ in range(min(4, max(1, round(most / len(group))))) for e in group]


def epoch_batches(examples: Sequence[Example], frames_per_batch: int) -> list[list[Example]]:
    """Batches of one epoch in random order. A batch has similar lengths and about `frames_per_batch` positions."""
    order = balanced(examples)
    random.shuffle(order)
    order = join_some(order)
    batches: list[list[Example]] = []
    for start in range(0, len(order), 512):
        pool = sorted(order[start : start + 512], key=lambda example: len(example.codes))
        batch: list[Example] = []
        for example in pool:
            if batch and (len(batch) + 1) * (len(example.codes) + 4) > frames_per_batch:
                batches.append(batch)
                batch = []
            batch.append(example)
        batches.append(batch)
    random.shuffle(batches)
    return batches
