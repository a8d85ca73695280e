"""The code predictor step by step against all codebooks of a frame in one call.

Hidden states, first codes and noise are fixed. Forward hooks on the heads read the logits of the steps. Also measures
the error of quantized weights, for `legato quantize`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from legato.backends.base import FrameInputs
from legato.engine.request import default_sampling
from legato.models.code_predictor.predict import frame_logits_uncached
from legato.models.layers.attention import wide_dtype
from legato.models.layers.decoder_layer import UncachedKV
from legato.models.layers.rope import inverse_frequencies, rope_tables
from legato.models.noise import uniforms
from legato.models.sampling import SamplerSettings, SamplingRows, sample
from legato.types import Frame, SamplingParams
from legato.verify.compare import CODES, Tolerance, agreement, compare, compare_codes, of_low_precision, of_scale
from legato.verify.results import CheckLine, Kind
from legato.verify.talker import talker_inputs
from legato.verify.target import Target
from legato.weights.quantization import dequantized_copy

GROUP = "code predictor"
PATH = "scratch of one frame"
AXES = ("row", "codebook", "code")


@dataclass(frozen=True, slots=True)
class PredictorInputs:
    """Inputs of the code predictor: hidden states of the talker [B, D], first codes [B], noise [B, Q]."""

    hidden: Tensor
    first_codes: Tensor
    noise: Tensor
    sampling: SamplingParams

    def row(self, at: int) -> PredictorInputs:
        """One row."""
        one = slice(at, at + 1)
        return PredictorInputs(self.hidden[one], self.first_codes[one], self.noise[one], self.sampling)

    @property
    def settings(self) -> SamplerSettings:
        """Sampler settings of the residual codebooks, per row."""
        return SamplingRows.of([self.sampling] * len(self.first_codes), self.first_codes.device).residual


@dataclass(frozen=True, slots=True)
class Predicted:
    """Codes [B, Q] and the logits [B, Q - 1, V] of the residual codebooks."""

    codes: Tensor
    logits: Tensor

    @property
    def frames(self) -> list[Frame]:
        """The codes as frames."""
        return [tuple(row) for row in self.codes.tolist()]


def check_predictor(target: Target) -> Iterator[CheckLine]:
    """Steps against one call, batched rows against single rows, then the controls."""
    given = predictor_inputs(target)
    stepped = predict_stepwise(target, given)
    whole = whole_logits(target, given.hidden, stepped.codes)
    tolerance = predictor_tolerance(target, given, stepped, whole)
    B = target.depth.predictor_rows
    yield _logits_line(
        target, "logits step by step = in one call", f"{B} frames, noise fixed", (stepped.logits, whole), tolerance
    )
    greedy = replace(given, sampling=greedy_of(given.sampling))
    for name, inputs in (("sampled with the checkpoint's settings", given), ("greedy", greedy)):
        predicted = predict_stepwise(target, inputs)
        from_whole = sample_from(whole_logits(target, inputs.hidden, predicted.codes), inputs)
        claim = "codes = codes sampled from one call's logits"
        yield _codes_line(target, claim, f"{B} frames, {name}", predicted, from_whole)
    solo = [predict_stepwise(target, given.row(index)) for index in range(B)]
    solo_logits = torch.cat([each.logits for each in solo])
    solo_frames = [frame for each in solo for frame in each.frames]
    # Once two rows differ in a code, their later logits have different inputs: compare rows with equal codes only.
    same = [index for index in range(B) if stepped.frames[index] == solo_frames[index]]
    yield _logits_line(
        target,
        "rows of a batch = single rows",
        f"{len(same)} rows",
        (stepped.logits[same], solo_logits[same]),
        tolerance,
    )
    yield _codes_line(target, "codes of a batch = codes of single rows", f"{B} rows", stepped, solo_frames)
    yield from _controls(target, given, stepped, whole, tolerance)


def predictor_inputs(target: Target) -> PredictorInputs:
    """Hidden states of the talker for fixed inputs; first codes and noise from the seed."""
    B, Q = target.depth.predictor_rows, target.model.config.talker.num_codebooks
    hidden = target.backend.talker.forward_uncached(talker_inputs(target, B, 1))[0]
    noise = [uniforms(target.seed, 0, frame, Q) for frame in range(B)]
    return PredictorInputs(
        hidden,
        target.random_codes(B, salt=6)[0, :, 0],
        torch.tensor(noise, dtype=torch.float64, device=target.device),
        default_sampling(target.model.config),
    )


def greedy_of(sampling: SamplingParams) -> SamplingParams:
    """The same parameters with greedy residual codes."""
    return replace(sampling, predictor_temperature=0.0)


def predict_stepwise(target: Target, given: PredictorInputs) -> Predicted:
    """Codes of `predict_frame` as the engine calls it, and the logits of its heads.

    The compiled frame is a single call that runs no hooks, so a second call with hooks, which runs step by step, gives
    the logits.
    """
    predictor, logits = target.backend.code_predictor, list[Tensor]()

    def predict_codes() -> Tensor:
        inputs = FrameInputs(
            hidden=given.hidden,
            first_code=given.first_codes,
            temperature=given.settings.temperature,
            top_k=given.settings.top_k,
            top_p=given.settings.top_p,
            noise=given.noise,
        )
        return target.backend.predict_frame(inputs).codes

    def record_logits(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        logits.append(output.to(wide_dtype(output)))

    codes = predict_codes()
    with ExitStack() as hooks:
        for head in predictor.lm_head:
            hooks.callback(head.register_forward_hook(record_logits).remove)
        predict_codes()
    return Predicted(codes, torch.stack(logits, dim=1))


def whole_logits(target: Target, hidden: Tensor, codes: Tensor) -> Tensor:
    """The oracle: logits of all residual codebooks in one call."""
    backend = target.backend
    return frame_logits_uncached(backend.code_predictor, backend.talker.model.codec_embedding, hidden, codes)


def sample_from(logits: Tensor, given: PredictorInputs) -> list[Frame]:
    """The frames sampled from `logits` [B, Q - 1, V] with the given noise."""
    parts = [given.first_codes]
    parts += [sample(logits[:, j], given.settings, given.noise[:, j + 1]).codes for j in range(logits.shape[1])]
    return [tuple(row) for row in torch.stack(parts, dim=1).tolist()]


def predictor_tolerance(target: Target, given: PredictorInputs, stepped: Predicted, whole: Tensor) -> Tolerance:
    """A fraction of the largest logit. In low precision: relative to the error against float32."""
    if target.talker_full_precision:
        return of_scale(target.talker_dtype, float(whole.abs().max()))
    reference = dequantized_copy(target.model.code_predictor)
    embedding = dequantized_copy(target.model.talker.model.codec_embedding)
    oracle = frame_logits_uncached(reference, embedding, given.hidden.float(), stepped.codes)
    return of_low_precision(float((whole - oracle).abs().max()), target.talker_format)


def without_past(target: Target, given: PredictorInputs, codes: Tensor) -> Tensor:
    """The logits if every step attends to its own position only, as with a lost scratch cache."""
    predictor, stack = target.backend.code_predictor, target.backend.code_predictor.config.stack
    vectors = [given.hidden, target.backend.talker.model.codec_embedding(given.first_codes)]
    vectors += [predictor.model.codec_embedding[j](codes[:, j + 1]) for j in range(codes.shape[1] - 2)]
    alone = torch.ones(1, 1, 1, dtype=torch.bool, device=codes.device)
    logits: list[Tensor] = []
    for position, vector in enumerate(vectors[1:], start=1):
        index = torch.tensor([[position]], device=codes.device)
        frequencies = inverse_frequencies(stack.head_dim, stack.rope_theta, codes.device)
        rope = rope_tables(index, frequencies, wide_dtype(vector))
        states = predictor.forward(vector[:, None], rope=rope, kv=UncachedKV(alone))
        logits.append(predictor.logits(states[:, 0], position - 1))
    return torch.stack(logits, dim=1)


# --- controls and lines ----------------------------------------------------------------------------------------------


def _controls(
    target: Target, given: PredictorInputs, stepped: Predicted, whole: Tensor, tolerance: Tolerance
) -> Iterator[CheckLine]:
    def line(name: str, logits: Tensor) -> CheckLine:
        return _logits_line(target, name, "logits", (logits, whole), tolerance, kind=Kind.CONTROL)

    size = target.model.config.code_predictor.codebook_size
    yield line("earlier positions of the frame dropped", without_past(target, given, stepped.codes))
    yield line("hidden state of another row", whole_logits(target, given.hidden.roll(1, 0), stepped.codes))
    altered = stepped.codes.clone()
    altered[:, 0] = (altered[:, 0] + size // 2) % size
    yield line("another first code", whole_logits(target, given.hidden, altered))
    other = sample_from(whole, replace(given, noise=given.noise.roll(1, 1)))
    if given.sampling.predictor_temperature > 0 and given.sampling.predictor_top_k != 1:
        yield _codes_line(target, "noise of another codebook", "sampled", stepped, other, kind=Kind.CONTROL)


def _logits_line(
    target: Target,
    claim: str,
    setting: str,
    pair: tuple[Tensor, Tensor],
    tolerance: Tolerance,
    *,
    kind: Kind = Kind.CLAIM,
) -> CheckLine:
    """Compare a pair of logits."""
    return CheckLine(
        group=GROUP,
        claim=claim,
        setting=setting,
        execution=target.talker_execution(PATH, batch=pair[0].shape[0]),
        comparison=compare(*pair, AXES, stage="logits of residual codebooks", limit=tolerance.limit),
        tolerance=tolerance,
        kind=kind,
    )


def _codes_line(
    target: Target,
    claim: str,
    setting: str,
    got: Predicted,
    oracle: Sequence[Frame],
    *,
    kind: Kind = Kind.CLAIM,
) -> CheckLine:
    """Compare codes. In low precision a rounding error may change a sampled code, so agreement is only measured."""
    if kind is Kind.CLAIM and not target.talker_full_precision:
        kind = Kind.MEASURED
    return CheckLine(
        group=GROUP,
        claim=claim,
        setting=setting,
        execution=target.talker_execution(PATH, batch=len(got.codes)),
        comparison=compare_codes(got.frames, oracle),
        tolerance=CODES,
        kind=kind,
        note=agreement(got.frames, oracle),
    )


# --- quantization error ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuantizationError:
    """Error of one codebook's logits: RMS error relative to their standard deviation, and agreement of the argmax."""

    codebook: int
    error: float
    agreement: float
    """Fraction of positions at which both models have the same most likely code."""


def measure_quantization_error(reference: Target, quantized: Target, positions: int) -> list[QuantizationError]:
    """Errors of all codebooks over fixed inputs. Each code predictor gets the hidden states of its own talker."""
    with torch.inference_mode():
        x = talker_inputs(reference, positions, 1)
        codes = reference.random_codes(positions, salt=6)[0, :, : reference.model.config.talker.num_codebooks]
        pairs = zip(_all_logits(reference, x, codes), _all_logits(quantized, x, codes), strict=True)
        return [_quantization_error(codebook, *pair) for codebook, pair in enumerate(pairs)]


def _all_logits(target: Target, x: Tensor, codes: Tensor) -> list[Tensor]:
    """Logits of each codebook [P, V] for fixed inputs and codes."""
    talker, predictor = target.backend.talker, target.backend.code_predictor
    hidden = talker.forward_uncached(x)[0]
    residual = frame_logits_uncached(predictor, talker.model.codec_embedding, hidden, codes)
    return [talker.first_code_logits(hidden), *residual.unbind(1)]


def _quantization_error(codebook: int, reference: Tensor, quantized: Tensor) -> QuantizationError:
    spread = (reference - reference.mean(-1, keepdim=True)).square().mean().sqrt()
    error = (quantized - reference).square().mean().sqrt() / spread
    same = (quantized.argmax(-1) == reference.argmax(-1)).float().mean()
    return QuantizationError(codebook, float(error), float(same))
