"""Negative controls: checkpoints and inputs with one fault each, which the same comparisons must detect.

A fault is one element of one tensor, or one token id. The official record is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from parity import cases, variants
from parity.checks import Check
from parity.compare import compare_codec, compare_row, compare_speaker
from parity.legato_side import ParityModel
from parity.records import Record

MODEL = "model.safetensors"
CODEC = "speech_tokenizer/model.safetensors"


@dataclass(frozen=True, slots=True)
class Fault:
    """One tensor element, multiplied by `factor`. `caught_by`: the comparison that must fail."""

    checkpoint: str
    file: str
    tensor: str
    index: tuple[int, ...]
    factor: float
    caught_by: str


FAULTS = (
    Fault(
        "tiny-custom-voice", MODEL, "talker.model.layers.1.self_attn.k_norm.weight", (3,), 1.5, "logits of codebook 0"
    ),
    Fault("tiny-custom-voice", MODEL, "talker.codec_head.weight", (640, 5), 1.5, "logits of codebook 0"),
    Fault("tiny-custom-voice", MODEL, "talker.text_projection.linear_fc2.weight", (0, 0), 3.0, "prompt rows"),
    Fault(
        "tiny-base-wide",
        MODEL,
        "talker.code_predictor.small_to_mtp_projection.weight",
        (1, 1),
        3.0,
        "logits of codebooks 1-15",
    ),
    Fault("tiny-base", CODEC, "decoder.decoder.1.block.1.conv.weight", (0, 0, 0), 3.0, "codec decoder"),
    Fault("tiny-base", CODEC, "encoder.encoder.layers.0.conv.weight", (0, 0, 3), 3.0, "codec encoder codes"),
    Fault("tiny-base", MODEL, "speaker_encoder.fc.weight", (0, 1, 0), 3.0, "speaker vector"),
)


def compare_fault(fault: Fault, checkpoints: Path, record: Record, scratch: Path) -> list[Check]:
    """The comparisons that depend on the tensor, with a faulty copy of the checkpoint."""
    faulty = variants.scaled_copy(
        checkpoints / fault.checkpoint,
        scratch,
        file=fault.file,
        name=fault.tensor,
        index=fault.index,
        factor=fault.factor,
    )
    model = ParityModel.load(faulty)
    if fault.file == CODEC:
        return compare_codec(model, record)
    if fault.tensor.startswith("speaker_encoder."):
        return compare_speaker(model, record)
    return compare_row(model, record, first_case(fault.checkpoint), 0)


def first_case(checkpoint: str) -> cases.Case:
    """The first case of a checkpoint."""
    return next(case for case in cases.all_cases() if case.checkpoint == checkpoint)


def compare_wrong_language(model: ParityModel, record: Record, case: cases.Case) -> list[Check]:
    """Row 0 of an English case requested in German: one id of the prompt differs."""
    row = replace(case.rows[0], language="german")
    return compare_row(model, record, replace(case, rows=(row,)), 0)


def caught(checks: list[Check], kind: str) -> bool:
    """True if a comparison of this kind failed."""
    return any(check.what == kind and not check.passed for check in checks)
