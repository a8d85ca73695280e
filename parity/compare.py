"""Legato against the official record: every comparison of parity, as a list of checks.

Pure: reads a record and a loaded checkpoint, keeps nothing. The full record and the thin one that is committed go
through the same code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from legato.flow import FinishReason, Sampling
from legato.models.code_predictor.predict import predict_frame
from legato.models.sampling import DrawSettings, SamplingRows, draw, process_first_code_logits
from legato.text.bpe import BpeTokenizer, Splitting
from parity import cases
from parity.checks import LIMITS, Check, equal, near
from parity.records import Record
from parity.speech import speak
from parity.subject import Computed, Subject

Array = npt.NDArray[Any]

SMALLEST_PROBABILITY = 1e-4
"""Candidates rarer than this are not aimed at: their share of the unit interval is nearer to rounding."""
SMALLEST_STEP = 1e-4
"""Nor are candidates whose score is this near to a neighbour's: which of the two stands first is rounding, too."""
MOST_AIMS = 48
"""Candidates aimed at in one distribution, evenly over its ranks from the first to the last."""


def array(value: Tensor) -> Array:
    found: Array = value.detach().cpu().numpy()
    return found


def sampling_of(case: cases.Case) -> Sampling:
    """The case's settings; greedy with the checkpoint's own penalty where it does not draw."""
    if case.draw is None:
        return Sampling(0.0, 0, 1.0, 1.05, 0.0, 0, 1.0)
    d = case.draw
    return Sampling(
        d.temperature,
        d.top_k,
        d.top_p,
        d.repetition_penalty,
        d.predictor_temperature,
        d.predictor_top_k,
        d.predictor_top_p,
    )


def first_code_scores(subject: Subject, sampling: Sampling, computed: Computed, codes: Tensor) -> Tensor:
    """Logits of codebook 0 after Legato's processing, for each frame of `codes` [T, Q] and one more: [T + 1, V]."""
    talker = subject.config.talker
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
        codebook_size=subject.config.codec.decoder.codebook_size,
        eos=talker.ids.eos,
    )


def greedy_codes(subject: Subject, case: cases.Case, computed: Computed, codes: Tensor) -> Array:
    """What Legato's greedy choice is at each frame, given the frames before it: [T + 1, Q].

    Equal to the official codes in every frame, and so by induction the codes of a greedy run. The last row has its
    first code alone, the others -1: it is the end of speech, or the code at which the case's limit stopped.
    """
    sampling = sampling_of(case)
    scores = first_code_scores(subject, sampling, computed, codes)
    settings = SamplingRows.of([sampling] * len(scores))
    first = draw(scores, settings.first, torch.zeros(len(scores))).codes
    Q = subject.config.talker.num_codebooks
    residual = SamplingRows.of([sampling] * len(codes)).residual
    noise = torch.zeros(len(codes), Q)
    frames = predict_frame(
        subject.predictor,
        subject.talker.model.codec_embedding,
        computed.hidden[:-1],
        first[:-1],
        settings=residual,
        noise=noise,
    ).codes
    last = torch.full((1, Q), -1)
    last[0, 0] = first[-1]
    return array(torch.cat((frames, last)))


def official_codes(record: Record, key: str) -> Array:
    """Codes of the record in the form of `greedy_codes`."""
    codes = record.arrays[key + "codes"].astype(np.int64)
    last = np.full((1, codes.shape[1]), -1)
    last[0, 0] = record.arrays[key + "next"]
    return np.concatenate((codes, last))


def aimed_draws(logits: Tensor, scores: Array, settings: DrawSettings) -> tuple[Array, Array]:
    """Draw with numbers that each hit the middle of one candidate's share by the official `scores` [V].

    `logits` [V] are Legato's, before temperature. Returns the codes drawn and the codes aimed at.
    """
    kept = np.flatnonzero(np.isfinite(scores))
    order = kept[np.argsort(-scores[kept], kind="stable")]
    weights = np.exp(scores[order].astype(np.float64) - scores[order].max())
    shares = weights / weights.sum()
    middles = np.cumsum(shares) - shares / 2
    steps = np.concatenate(([np.inf], -np.diff(scores[order]), [np.inf]))
    aim = np.flatnonzero((shares > SMALLEST_PROBABILITY) & (np.minimum(steps[:-1], steps[1:]) > SMALLEST_STEP))
    if len(aim) > MOST_AIMS:
        aim = aim[np.linspace(0, len(aim) - 1, MOST_AIMS).astype(np.int64)]
    many = logits[None].expand(len(aim), -1)
    uniform = torch.from_numpy(middles[aim])
    return array(draw(many, _repeat(settings, len(aim)), uniform).codes), order[aim]


def _repeat(settings: DrawSettings, count: int) -> DrawSettings:
    return DrawSettings(settings.temperature.expand(count), settings.top_k.expand(count), settings.top_p.expand(count))


def compare_draws(subject: Subject, record: Record, case: cases.Case, key: str, computed: Computed) -> list[Check]:
    """The distribution that is drawn from: penalty, least length, suppressed ids, temperature, top-k, top-p."""
    codes = torch.from_numpy(record.arrays[key + "codes"].astype(np.int64))
    sampling = sampling_of(case)
    settings = SamplingRows.of([sampling])
    ours, aims = [], []
    processed = first_code_scores(subject, sampling, computed, codes)
    for frame, scores in enumerate(record.arrays[key + "scores"]):
        drawn, aimed = aimed_draws(processed[frame], scores, settings.first)
        ours.append(drawn)
        aims.append(aimed)
    checks = [equal(key, "draws of codebook 0", np.concatenate(ours), np.concatenate(aims))]
    ours, aims = [], []
    for frame, heads in enumerate(record.arrays[key + "predictor_scores"]):
        for head, scores in enumerate(heads):
            drawn, aimed = aimed_draws(computed.predictor_logits[frame, head], scores, settings.residual)
            ours.append(drawn)
            aims.append(aimed)
    checks.append(equal(key, "draws of codebooks 1-15", np.concatenate(ours), np.concatenate(aims)))
    return checks


def compare_ids(subject: Subject, record: Record, case: cases.Case, index: int) -> list[Check]:
    """Ids of a row's texts. The package wraps a text in a chat template and cuts it out again; Legato does neither."""
    wrapped = record.facts["cases"][case.name]["ids"][index]
    official = {"target": wrapped["target"][3:-5], "instruct": wrapped.get("instruct", [])}
    if "reference" in wrapped:
        official["reference"] = wrapped["reference"][3:-2]
    ours = subject.row_tokens(case.rows[index])
    return [
        equal(f"{case.name}#{index}#{name}", "token ids", np.array([token for (token,) in ours[name]]), np.array(ids))
        for name, ids in official.items()
        if ids
    ]


@torch.inference_mode()
def compare_row(subject: Subject, record: Record, case: cases.Case, index: int) -> list[Check]:
    """One row of one case, along the official codes."""
    key = f"{case.name}#{index}#"
    row = case.rows[index]
    official = record.arrays
    codes = torch.from_numpy(official[key + "codes"].astype(np.int64))
    checks = compare_ids(subject, record, case, index)
    feed = official[key + "feed"]
    computed = subject.compute(row, codes, whole=case.whole, feed_steps=len(feed))
    checks += [
        near(key, "prompt rows", array(computed.prompt), official[key + "prompt"]),
        near(key, "text fed", array(computed.feed), feed),
        near(key, "hidden states", array(computed.hidden), official[key + "hidden"]),
    ]
    wide = {"logits": computed.logits, "predictor_logits": computed.predictor_logits}
    for name, what in (("logits", "logits of codebook 0"), ("predictor_logits", "logits of codebooks 1-15")):
        ours = record.reduce(key + name, array(wide[name]))
        checks.append(near(key, what, ours, official[key + name]))
    if case.draw is None:
        ours = greedy_codes(subject, case, computed, codes)
        checks.append(equal(key, "codes", ours, official_codes(record, key)))
    else:
        checks += compare_draws(subject, record, case, key, computed)
    return checks


def compare_speech(subject: Subject, record: Record, case: cases.Case) -> list[Check]:
    """A greedy case through the whole product: codes of the engine's own loop, samples of its packets, its end."""
    official = record.arrays
    checks: list[Check] = []
    for index, spoken in enumerate(speak(subject, case, sampling_of(case))):
        key = f"{case.name}#{index}#"
        codes = official[key + "codes"].astype(np.int64)
        checks.append(equal(key, "codes spoken", spoken.codes, codes))
        checks.append(near(key, "samples spoken", record.reduce(key + "wave", spoken.samples), official[key + "wave"]))
        ended = len(codes) < case.tokens - 1
        wanted = FinishReason.EOS if ended else FinishReason.MAX_FRAMES
        right = spoken.reasons == [wanted]
        checks.append(Check(key, "ends spoken", float(not right), LIMITS["ends spoken"], f"{spoken.reasons}"))
    return checks


@torch.inference_mode()
def compare_codec(subject: Subject, record: Record) -> list[Check]:
    """The codec on its own: random codes to samples, made-up audio to latents and codes."""
    decoder = subject.decoder
    checks: list[Check] = []
    for key in record.keys("decode"):
        frames = int(key.split("#")[1])
        codes = cases.random_codes(frames, decoder.config.num_quantizers, decoder.config.codebook_size)
        samples = decoder(decoder.fresh(1), torch.from_numpy(codes)[None])[0][0]
        checks.append(near(key, "codec decoder", record.reduce(key, array(samples)), record.arrays[key]))
    for key in record.keys("encode"):
        found = array(subject.encode(cases.reference_audio(int(key.split("#")[1]))))
        checks.append(equal(key, "codec encoder codes", found, record.arrays[key].astype(np.int64)))
    return checks


@torch.inference_mode()
def compare_speaker(subject: Subject, record: Record) -> list[Check]:
    """Mel frames and speaker vectors of the references; none for a checkpoint without a speaker encoder."""
    checks: list[Check] = []
    for key in record.keys("mel"):
        mel = array(subject.mel(cases.reference_audio(int(key.split("#")[1]))))
        checks.append(near(key, "mel", record.reduce(key, mel), record.arrays[key]))
    for key in record.keys("speaker"):
        vector = array(subject.speaker_vector(cases.reference_audio(int(key.split("#")[1]))))
        checks.append(near(key, "speaker vector", vector, record.arrays[key], relative=True))
    return checks


def compare_texts(subject: Subject, record: Record) -> list[Check]:
    """Token ids under both pre-tokenizer expressions: Qwen's own, and what the package's wrapper puts in its place."""
    checks: list[Check] = []
    texts = record.facts["texts"]
    for splitting, wanted in ((Splitting.QWEN, texts["own_ids"]), (Splitting.MISTRAL, texts["wrapper_ids"])):
        tokenizer = BpeTokenizer.load(subject.model.folder, splitting)
        for text, ids in zip(cases.TEXTS, wanted, strict=True):
            found = np.array(tokenizer.encode(text))
            checks.append(equal(f"{splitting.name}: {text!r}", "token ids", found, np.array(ids)))
    return checks
