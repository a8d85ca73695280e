"""Compares Legato with the record of the official package; each function returns a list of checks.

Pure functions of a record and a loaded checkpoint. Works on full records and on the reduced ones in tests/fixtures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from legato.backends.base import FrameInputs
from legato.models.sampling import SamplerSettings, SamplingRows, process_first_code_logits, sample
from legato.text.tokenizer import BpeTokenizer, PreTokenizer
from legato.types import FinishReason, SamplingParams
from parity import cases
from parity.checks import LIMITS, Check, equal, near
from parity.legato_side import Computed, ParityModel
from parity.records import Record
from parity.speech import run_engine

Array = npt.NDArray[Any]

SMALLEST_PROBABILITY = 1e-4
"""Less probable candidates are skipped: their interval of the uniform noise is as small as rounding errors."""
SMALLEST_STEP = 1e-4
"""Candidates with a score this close to a neighbour's are skipped: rounding may swap their order."""
MAX_CANDIDATES = 48
"""Candidates tested per distribution, evenly spaced over its ranks."""


def array(value: Tensor) -> Array:
    found: Array = value.detach().cpu().numpy()
    return found


def sampling_of(case: cases.Case) -> SamplingParams:
    """Sampling parameters of the case; greedy with the checkpoint's repetition penalty by default."""
    if case.sampling is None:
        return SamplingParams(
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            repetition_penalty=1.05,
            predictor_temperature=0.0,
            predictor_top_k=0,
            predictor_top_p=1.0,
        )
    sampling = case.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        repetition_penalty=sampling.repetition_penalty,
        predictor_temperature=sampling.predictor_temperature,
        predictor_top_k=sampling.predictor_top_k,
        predictor_top_p=sampling.predictor_top_p,
    )


def first_code_scores(model: ParityModel, sampling: SamplingParams, computed: Computed, codes: Tensor) -> Tensor:
    """Logits of codebook 0 after Legato's processing, for each frame of `codes` [T, Q] and one more: [T + 1, V]."""
    talker = model.config.talker
    steps = len(codes) + 1
    seen = torch.zeros(steps, talker.vocab_size, dtype=torch.bool)
    for n in range(1, steps):
        seen[n, codes[:n, 0]] = True
    return process_first_code_logits(
        computed.logits,
        seen,
        frames=torch.arange(steps),
        allow_eos=torch.ones(steps, dtype=torch.bool),
        repetition_penalty=SamplingRows.of([sampling] * steps).repetition_penalty,
        codebook_size=model.config.codec.decoder.codebook_size,
        eos=talker.ids.eos,
    )


def greedy_codes(model: ParityModel, case: cases.Case, computed: Computed, codes: Tensor) -> Array:
    """Legato's greedy choice at each frame, given the official frames before it: [T + 1, Q].

    If it equals the official codes at every frame, then, by induction, a greedy run gives the same codes. The last row
    has a first code only (end of speech, or the code at which the frame limit stopped); its other values are -1.
    """
    sampling = sampling_of(case)
    scores = first_code_scores(model, sampling, computed, codes)
    settings = SamplingRows.of([sampling] * len(scores))
    first = sample(scores, settings.first, torch.zeros(len(scores))).codes
    Q = model.config.talker.num_codebooks
    residual = SamplingRows.of([sampling] * len(codes)).residual
    noise = torch.zeros(len(codes), Q)
    inputs = FrameInputs(
        hidden=computed.hidden[:-1],
        first_code=first[:-1],
        temperature=residual.temperature,
        top_k=residual.top_k,
        top_p=residual.top_p,
        noise=noise,
    )
    frames = model.backend.predict_frame(inputs).codes
    last = torch.full((1, Q), -1)
    last[0, 0] = first[-1]
    return array(torch.cat((frames, last)))


def official_codes(record: Record, key: str) -> Array:
    """Recorded codes in the format of `greedy_codes`."""
    codes = record.arrays[key + "codes"].astype(np.int64)
    last = np.full((1, codes.shape[1]), -1)
    last[0, 0] = record.arrays[key + "next"]
    return np.concatenate((codes, last))


def sample_candidates(logits: Tensor, scores: Array, settings: SamplerSettings) -> tuple[Array, Array]:
    """Sample with noise values in the middle of each candidate's interval of the official distribution.

    `scores` [V] are the official processed logits, `logits` [V] are Legato's, before temperature. Returns the sampled
    and the expected codes. If they are equal, both sides apply temperature, top-k and top-p in the same way.
    """
    kept = np.flatnonzero(np.isfinite(scores))
    order = kept[np.argsort(-scores[kept], kind="stable")]
    weights = np.exp(scores[order].astype(np.float64) - scores[order].max())
    probabilities = weights / weights.sum()
    middles = np.cumsum(probabilities) - probabilities / 2
    steps = np.concatenate(([np.inf], -np.diff(scores[order]), [np.inf]))
    chosen = np.flatnonzero(
        (probabilities > SMALLEST_PROBABILITY) & (np.minimum(steps[:-1], steps[1:]) > SMALLEST_STEP)
    )
    if len(chosen) > MAX_CANDIDATES:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MAX_CANDIDATES).astype(np.int64)]
    batch = logits[None].expand(len(chosen), -1)
    uniform = torch.from_numpy(middles[chosen])
    return array(sample(batch, _repeat(settings, len(chosen)), uniform).codes), order[chosen]


def _repeat(settings: SamplerSettings, count: int) -> SamplerSettings:
    return SamplerSettings(
        settings.temperature.expand(count), settings.top_k.expand(count), settings.top_p.expand(count)
    )


def compare_sampling(model: ParityModel, record: Record, case: cases.Case, key: str, computed: Computed) -> list[Check]:
    """The sampling distribution: penalty, minimum length, suppressed ids, temperature, top-k, top-p."""
    codes = torch.from_numpy(record.arrays[key + "codes"].astype(np.int64))
    sampling = sampling_of(case)
    settings = SamplingRows.of([sampling])
    ours, expected = [], []
    processed = first_code_scores(model, sampling, computed, codes)
    for frame, scores in enumerate(record.arrays[key + "scores"]):
        sampled, wanted = sample_candidates(processed[frame], scores, settings.first)
        ours.append(sampled)
        expected.append(wanted)
    checks = [equal(key, "sampled codes of codebook 0", np.concatenate(ours), np.concatenate(expected))]
    ours, expected = [], []
    for frame, heads in enumerate(record.arrays[key + "predictor_scores"]):
        for head, scores in enumerate(heads):
            sampled, wanted = sample_candidates(computed.predictor_logits[frame, head], scores, settings.residual)
            ours.append(sampled)
            expected.append(wanted)
    checks.append(equal(key, "sampled codes of codebooks 1-15", np.concatenate(ours), np.concatenate(expected)))
    return checks


def compare_ids(model: ParityModel, record: Record, case: cases.Case, index: int) -> list[Check]:
    """Token ids of a row's texts. The package adds a chat template and slices it off; Legato does not add it."""
    wrapped = record.facts["cases"][case.name]["ids"][index]
    official = {"target": wrapped["target"][3:-5], "instruct": wrapped.get("instruct", [])}
    if "reference" in wrapped:
        official["reference"] = wrapped["reference"][3:-2]
    ours = model.row_tokens(case.rows[index])
    return [
        equal(f"{case.name}#{index}#{name}", "token ids", np.array([token for (token,) in ours[name]]), np.array(ids))
        for name, ids in official.items()
        if ids
    ]


@torch.inference_mode()
def compare_row(model: ParityModel, record: Record, case: cases.Case, index: int) -> list[Check]:
    """One row of a case, with the official codes as input (teacher forcing)."""
    key = f"{case.name}#{index}#"
    row = case.rows[index]
    official = record.arrays
    codes = torch.from_numpy(official[key + "codes"].astype(np.int64))
    checks = compare_ids(model, record, case, index)
    feed = official[key + "feed"]
    computed = model.compute(row, codes, whole=case.whole, feed_steps=len(feed))
    checks += [
        near(key, "prompt rows", array(computed.prompt), official[key + "prompt"]),
        near(key, "text fed", array(computed.feed), feed),
        near(key, "hidden states", array(computed.hidden), official[key + "hidden"]),
    ]
    wide = {"logits": computed.logits, "predictor_logits": computed.predictor_logits}
    for name, what in (("logits", "logits of codebook 0"), ("predictor_logits", "logits of codebooks 1-15")):
        ours = record.reduce(key + name, array(wide[name]))
        checks.append(near(key, what, ours, official[key + name]))
    if case.sampling is None:
        ours = greedy_codes(model, case, computed, codes)
        checks.append(equal(key, "codes", ours, official_codes(record, key)))
    else:
        checks += compare_sampling(model, record, case, key, computed)
    return checks


def compare_engine(model: ParityModel, record: Record, case: cases.Case) -> list[Check]:
    """A greedy case through the whole engine: codes, samples of the packets, and finish reason."""
    official = record.arrays
    checks: list[Check] = []
    for index, output in enumerate(run_engine(model, case, sampling_of(case))):
        key = f"{case.name}#{index}#"
        codes = official[key + "codes"].astype(np.int64)
        checks.append(equal(key, "engine codes", output.codes, codes))
        checks.append(near(key, "engine samples", record.reduce(key + "wave", output.samples), official[key + "wave"]))
        ended = len(codes) < case.max_new_tokens - 1
        wanted = FinishReason.EOS if ended else FinishReason.MAX_FRAMES
        right = output.reasons == [wanted]
        checks.append(
            Check(key, "engine finish reasons", float(not right), LIMITS["engine finish reasons"], f"{output.reasons}")
        )
    return checks


@torch.inference_mode()
def compare_codec(model: ParityModel, record: Record) -> list[Check]:
    """The codec: random codes to samples, synthetic audio to codes."""
    decoder = model.decoder
    checks: list[Check] = []
    for key in record.keys("decode"):
        frames = int(key.split("#")[1])
        codes = cases.random_codes(frames, decoder.config.num_quantizers, decoder.config.codebook_size)
        samples = decoder(decoder.initial_history(1), torch.from_numpy(codes)[None])[0][0]
        checks.append(near(key, "codec decoder", record.reduce(key, array(samples)), record.arrays[key]))
    for key in record.keys("encode"):
        found = array(model.encode(cases.reference_audio(int(key.split("#")[1]))))
        checks.append(equal(key, "codec encoder codes", found, record.arrays[key].astype(np.int64)))
    return checks


@torch.inference_mode()
def compare_speaker(model: ParityModel, record: Record) -> list[Check]:
    """Mel frames and speaker vectors of the references; empty for a checkpoint without a speaker encoder."""
    checks: list[Check] = []
    for key in record.keys("mel"):
        mel = array(model.mel(cases.reference_audio(int(key.split("#")[1]))))
        checks.append(near(key, "mel", record.reduce(key, mel), record.arrays[key]))
    for key in record.keys("speaker"):
        vector = array(model.speaker_vector(cases.reference_audio(int(key.split("#")[1]))))
        checks.append(near(key, "speaker vector", vector, record.arrays[key], relative=True))
    return checks


def compare_texts(model: ParityModel, record: Record) -> list[Check]:
    """Token ids with both pre-tokenizer patterns: Qwen's own, and the package wrapper's replacement."""
    checks: list[Check] = []
    texts = record.facts["texts"]
    for pre_tokenizer, wanted in ((PreTokenizer.QWEN, texts["own_ids"]), (PreTokenizer.MISTRAL, texts["wrapper_ids"])):
        tokenizer = BpeTokenizer.load(model.loaded.folder, pre_tokenizer)
        for text, ids in zip(cases.TEXTS, wanted, strict=True):
            found = np.array(tokenizer.encode(text))
            checks.append(equal(f"{pre_tokenizer.name}: {text!r}", "token ids", found, np.array(ids)))
    return checks
