"""CASES R72: the default thread count is the number of physical cores available to this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from legato.cli.loading import set_threads
from legato.cli.threads import cpu_quota, default_threads, physical_cores, vector_isa


def cpuinfo(*processors: tuple[int, int, int]) -> str:
    """Blocks of (processor, physical id, core id)."""
    return "\n\n".join(
        f"processor\t: {number}\nmodel name\t: X: Y\nphysical id\t: {package}\ncore id\t\t: {core}\n"
        for number, package, core in processors
    )


TWO_SOCKETS = cpuinfo(*((number, number // 4 % 2, number % 4) for number in range(16)))


def test_hyper_threads_of_a_core_count_once() -> None:
    assert physical_cores(TWO_SOCKETS, set(range(16))) == 8
    assert physical_cores(TWO_SOCKETS, {0, 8}) == 1
    assert physical_cores(TWO_SOCKETS, {0, 1, 4}) == 3


def test_processors_are_counted_if_there_are_no_core_ids() -> None:
    assert physical_cores("processor\t: 0\nBogoMIPS\t: 50\n\nprocessor\t: 1\n", {0, 1}) == 2


@pytest.mark.parametrize(("written", "whole"), [("max 100000", 0), ("150000 100000", 2), ("50000 100000", 1)])
def test_cgroup_v2_quota_limits_the_count(tmp_path: Path, written: str, whole: int) -> None:
    (tmp_path / "cpu.max").write_text(written + "\n")
    assert cpu_quota(tmp_path) == whole


@pytest.mark.parametrize(("quota", "whole"), [("-1", 0), ("400000", 4)])
def test_cgroup_v1_quota_limits_the_count(tmp_path: Path, quota: str, whole: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cpu_quota(tmp_path) == whole
    assert cpu_quota(tmp_path / "absent") == 0


@pytest.mark.parametrize(
    ("flags", "machine", "isa"),
    [
        ({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma"}, "x86_64", "AVX-512"),
        ({"avx512f", "avx2", "fma"}, "x86_64", "AVX2"),
        ({"sse2"}, "x86_64", ""),
        ({"asimd"}, "aarch64", "NEON"),
    ],
)
def test_vector_isa_is_the_widest_supported(flags: set[str], machine: str, isa: str) -> None:
    assert vector_isa(frozenset(flags), machine) == isa


def test_set_threads_configures_torch_and_disables_tf32() -> None:
    import torch

    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    threads_before, tf32_before = torch.get_num_threads(), (cudnn.allow_tf32, matmul.allow_tf32)
    try:
        cudnn.allow_tf32 = matmul.allow_tf32 = True
        assert set_threads(1) == torch.get_num_threads() == 1
        assert set_threads(None) == torch.get_num_threads() == default_threads() >= 1
        assert not cudnn.allow_tf32  # on CUDA, float32 stays float32
        assert not matmul.allow_tf32
    finally:
        torch.set_num_threads(threads_before)
        cudnn.allow_tf32, matmul.allow_tf32 = tf32_before
