"""The numerics fingerprint: equal for equal loads, and different for everything that changes bits."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from legato.api import load
from legato.backends.fingerprint import NumericsFingerprint, numerics_fingerprint
from legato.backends.select import build_backend, load_backend
from legato.bench.environment import model_info
from legato.bench.jsonl import read
from legato.config.cpus import kernel_instructions
from legato.weights.loading import load_model
from tests.conftest import TinyCheckpoint

EXAMPLE = NumericsFingerprint(
    checkpoint="0f" * 32,
    legato="1.0",
    backend="cpu",
    instructions="native AVX2, torch AVX2",
    language_kernels="native",
    codec_kernels="native",
    language_dtype="float32",
    codec_dtype="float32",
    cache_dtype="float32",
    quantization="none",
    batch_invariant=True,
    window_invariant=True,
)


@pytest.fixture
def folder(tiny_checkpoint: TinyCheckpoint) -> Path:
    return tiny_checkpoint("tiny-custom-voice")


def test_digest_depends_on_every_field() -> None:
    assert EXAMPLE.digest == replace(EXAMPLE).digest == "3a48d57f2d72904d"
    changed = [
        replace(EXAMPLE, **{each.name: False})  # type: ignore[arg-type]
        for each in fields(EXAMPLE)
    ]
    assert len({EXAMPLE.digest, *(each.digest for each in changed)}) == 1 + len(changed)
    assert [EXAMPLE.differences(each) for each in changed] == [(each.name,) for each in fields(EXAMPLE)]


def test_two_loads_have_one_fingerprint(folder: Path) -> None:
    with load(folder) as tts:
        assert tts.fingerprint() == numerics_fingerprint(load_backend(folder))


def test_settings_in_effect_are_recorded(folder: Path) -> None:
    plain = numerics_fingerprint(load_backend(folder))
    assert plain.differences(numerics_fingerprint(load_backend(folder, quant="none", dtype="float32"))) == ()
    bf16_codec = numerics_fingerprint(load_backend(folder, codec_dtype="bfloat16"))
    assert plain.differences(bf16_codec) == ("codec_dtype",)
    quantized = numerics_fingerprint(load_backend(folder, quant="int8"))
    assert {"quantization", "cache_dtype"} <= set(plain.differences(quantized))
    by_torch = numerics_fingerprint(build_backend(load_model(folder), native=False))
    assert by_torch.language_kernels.startswith("torch ")
    assert not by_torch.batch_invariant
    assert numerics_fingerprint(load_backend(folder), batch_invariant=True).batch_invariant


def test_benchmark_records_carry_it(folder: Path) -> None:
    info = model_info("tiny", load_backend(folder))
    assert info.fingerprint == numerics_fingerprint(load_backend(folder))
    assert read(NumericsFingerprint, asdict(EXAMPLE), "line") == EXAMPLE
    assert str(EXAMPLE) == EXAMPLE.digest == EXAMPLE.to_json()["digest"]


@pytest.mark.parametrize(
    ("flags", "machine", "expected"),
    [
        (
            "avx2 fma avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16 amx_int8",
            "x86_64",
            "AVX-512 VNNI BF16 AMX",
        ),
        ("avx2 fma avx_vnni avx512f", "x86_64", "AVX2 VNNI"),
        ("sse4_2", "x86_64", ""),
        ("asimd asimddp", "aarch64", "NEON DOTPROD"),
    ],
)
def test_instruction_sets_of_the_kernels(flags: str, machine: str, expected: str) -> None:
    assert kernel_instructions(frozenset(flags.split()), machine) == expected
