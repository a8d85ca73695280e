"""The code predictor step by step, as frames are drawn, against all codebooks of a frame in one call.

Hidden states, first codes and noise are fixed. Logits of the steps are read by hooks on the heads for the time of one
call. Owns nothing beyond a call; knows no engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from legato.engine.resolve import default_sampling
from legato.flow import Frame, Sampling
from legato.models.code_predictor.predict import predict_frame, predict_frame_whole_logits
from legato.models.layers.decoder_layer import OwnKeyValues, wide_dtype
from legato.models.layers.rope import inverse_frequencies, rotation
from legato.models.noise import uniforms
from legato.models.quantize import exact_copy
from legato.models.sampling import DrawSettings, SamplingRows, draw
from legato.verify.compare import agreement, compare, compare_codes, worst
from legato.verify.lines import CheckLine, Kind
from legato.verify.subject import Subject
from legato.verify.talker import talker_inputs
from legato.verify.tolerance import CODES, Tolerance, of_rounding, of_scale

GROUP = "code predictor"
PATH = "scratch of one frame"
AXES = ("row", "codebook", "code")


@dataclass(frozen=True, slots=True)
class Given:
    """What frames are predicted from: the talker's hidden states [B, D], first codes [B], noise [B, Q]."""

    hidden: Tensor
    first: Tensor
    noise: Tensor
    sampling: Sampling

    def row(self, at: int) -> Given:
        """One row alone."""
        return Given(self.hidden[at : at + 1], self.first[at : at + 1], self.noise[at : at + 1], self.sampling)

    @property
    def settings(self) -> DrawSettings:
        """How residual codes are drawn, for each row."""
        return SamplingRows.of([self.sampling] * len(self.first), self.first.device).residual


@dataclass(frozen=True, slots=True)
class Predicted:
    """Codes [B, Q] and the logits [B, Q - 1, V] that the residual ones were drawn from."""

    codes: Tensor
    logits: Tensor

    @property
    def frames(self) -> list[Frame]:
        """The codes as the engine hands them on."""
        return [tuple(row) for row in self.codes.tolist()]


def check_predictor(subject: Subject) -> Iterator[CheckLine]:
    """Steps against the whole, rows against each alone, one frame after another, and what must be noticed."""
    given = given_rows(subject)
    stepped = step_by_step(subject, given)
    whole = whole_logits(subject, given.hidden, stepped.codes)
    tolerance = predictor_tolerance(subject, given, stepped, whole)
    B = subject.depth.predictor_rows
    rows = f"{B} frames, noise fixed"
    yield _logits_line(subject, "logits step by step = in one call", rows, (stepped.logits, whole), tolerance)
    warm, cold = given, replace(given, sampling=greedy_of(given.sampling))
    for name, each in (("drawn with the checkpoint's settings", warm), ("greedy", cold)):
        drawn = step_by_step(subject, each)
        again = draw_from(whole_logits(subject, each.hidden, drawn.codes), each)
        yield _codes_line(subject, "codes = those drawn from one call's logits", f"{B} frames, {name}", drawn, again)
    alone = [step_by_step(subject, given.row(at)) for at in range(B)]
    logits = torch.cat([each.logits for each in alone])
    lonely = [frame for each in alone for frame in each.frames]
    # Where a row's codes part, its later logits answer another question: only rows with equal codes are compared.
    same = [at for at in range(B) if stepped.frames[at] == lonely[at]]
    yield _logits_line(
        subject, "rows of a batch = each alone", f"{len(same)} rows", (stepped.logits[same], logits[same]), tolerance
    )
    yield _codes_line(subject, "codes of a batch = each alone", f"{B} rows", stepped, lonely)
    yield from _controls(subject, given, stepped, whole, tolerance)


def given_rows(subject: Subject) -> Given:
    """Hidden states of the talker over fixed inputs, first codes and noise from the seed."""
    B, Q = subject.depth.predictor_rows, subject.model.config.talker.num_codebooks
    hidden = subject.model.talker.forward_whole(talker_inputs(subject, B, 1))[0]
    noise = [uniforms(subject.seed, 0, frame, Q) for frame in range(B)]
    return Given(
        hidden,
        subject.codes(B, salt=6)[0, :, 0],
        torch.tensor(noise, dtype=torch.float64, device=subject.device),
        default_sampling(subject.model.config),
    )


def greedy_of(sampling: Sampling) -> Sampling:
    """The same with the residual codes drawn greedily."""
    return replace(sampling, predictor_temperature=0.0)


def step_by_step(subject: Subject, given: Given) -> Predicted:
    """The codes of `predict_frame` as the engine calls it, and the logits that its heads give when listened to.

    A compiled frame is one call in which no head can be heard: the second time it goes step by step.
    """
    predictor, heard = subject.model.code_predictor, list[Tensor]()

    def frame() -> Tensor:
        drawn = predict_frame(
            predictor,
            subject.model.talker.model.codec_embedding,
            given.hidden,
            given.first,
            settings=given.settings,
            noise=given.noise,
        )
        return drawn.codes

    def listen(_module: nn.Module, _inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        heard.append(logits.to(wide_dtype(logits)))

    codes = frame()
    with ExitStack() as hooks:
        for head in predictor.lm_head:
            hooks.callback(head.register_forward_hook(listen).remove)
        frame()
    return Predicted(codes, torch.stack(heard, dim=1))


def whole_logits(subject: Subject, hidden: Tensor, codes: Tensor) -> Tensor:
    """The oracle: logits of all residual codebooks of given frames in one call."""
    model = subject.model
    return predict_frame_whole_logits(model.code_predictor, model.talker.model.codec_embedding, hidden, codes)


def draw_from(logits: Tensor, given: Given) -> list[Frame]:
    """The frames that the noise draws from `logits` [B, Q - 1, V]."""
    parts = [given.first]
    parts += [draw(logits[:, j], given.settings, given.noise[:, j + 1]).codes for j in range(logits.shape[1])]
    return [tuple(row) for row in torch.stack(parts, dim=1).tolist()]


def predictor_tolerance(subject: Subject, given: Given, stepped: Predicted, whole: Tensor) -> Tolerance:
    """A share of the largest logit, or what the rounding of dtype and products costs the whole computation."""
    if subject.language_sharp:
        return of_scale(subject.talker_dtype, float(whole.abs().max()))
    exact = exact_copy(subject.model.code_predictor)
    embedding = exact_copy(subject.model.talker.model.codec_embedding)
    oracle = predict_frame_whole_logits(exact, embedding, given.hidden.float(), stepped.codes)
    return of_rounding(float((whole - oracle).abs().max()), subject.language_format)


def without_past(subject: Subject, given: Given, codes: Tensor) -> Tensor:
    """The logits when every step sees its own position alone: what a lost scratch would give."""
    predictor, stack = subject.model.code_predictor, subject.model.code_predictor.config.stack
    vectors = [given.hidden, subject.model.talker.model.codec_embedding(given.first)]
    vectors += [predictor.model.codec_embedding[j](codes[:, j + 1]) for j in range(codes.shape[1] - 2)]
    alone = torch.ones(1, 1, 1, dtype=torch.bool, device=codes.device)
    logits: list[Tensor] = []
    for position, vector in enumerate(vectors[1:], start=1):
        at = torch.tensor([[position]], device=codes.device)
        frequencies = inverse_frequencies(stack.head_dim, stack.rope_theta, codes.device)
        by = rotation(at, frequencies, wide_dtype(vector))
        states = predictor.forward(vector[:, None], by=by, kv=OwnKeyValues(alone))
        logits.append(predictor.logits(states[:, 0], position - 1))
    return torch.stack(logits, dim=1)


# --- controls and lines ----------------------------------------------------------------------------------------------


def _controls(
    subject: Subject, given: Given, stepped: Predicted, whole: Tensor, tolerance: Tolerance
) -> Iterator[CheckLine]:
    def line(name: str, logits: Tensor) -> CheckLine:
        return _logits_line(subject, name, "logits", (logits, whole), tolerance, kind=Kind.CONTROL)

    size = subject.model.config.code_predictor.codebook_size
    yield line("earlier positions of the frame forgotten", without_past(subject, given, stepped.codes))
    yield line("hidden state of another row", whole_logits(subject, given.hidden.roll(1, 0), stepped.codes))
    altered = stepped.codes.clone()
    altered[:, 0] = (altered[:, 0] + size // 2) % size
    yield line("another first code", whole_logits(subject, given.hidden, altered))
    other = draw_from(whole, replace(given, noise=given.noise.roll(1, 1)))
    if given.sampling.predictor_temperature > 0 and given.sampling.predictor_top_k != 1:
        yield _codes_line(subject, "noise of another codebook", "drawn", stepped, other, kind=Kind.CONTROL)


def _logits_line(
    subject: Subject,
    claim: str,
    setting: str,
    pair: tuple[Tensor, Tensor],
    tolerance: Tolerance,
    *,
    kind: Kind = Kind.CLAIM,
) -> CheckLine:
    parts = [compare(*pair, AXES, stage="logits of residual codebooks", limit=tolerance.limit)]
    where = subject.at_talker(PATH, batch=pair[0].shape[0])
    return CheckLine(GROUP, claim, setting, where, worst(parts), tolerance, kind)


def _codes_line(
    subject: Subject,
    claim: str,
    setting: str,
    got: Predicted,
    oracle: Sequence[Frame],
    *,
    kind: Kind = Kind.CLAIM,
) -> CheckLine:
    """Codes: equal in float32; where more is rounded, it may tip a draw, so agreement is only measured there."""
    comparison = compare_codes(got.frames, oracle)
    if kind is Kind.CLAIM and not subject.language_sharp:
        kind = Kind.MEASURED
    where = subject.at_talker(PATH, batch=len(got.codes))
    return CheckLine(GROUP, claim, setting, where, comparison, CODES, kind, agreement(got.frames, oracle))
