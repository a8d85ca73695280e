"""CASES R72: the default is the physical cores that this process may use, whatever the machine around it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from legato.cli.model_options import set_threads
from legato.cli.threads import cpu_quota, default_threads, physical_cores


def cpuinfo(*processors: tuple[int, int, int]) -> str:
    """Blocks of (processor, physical id, core id)."""
    return "\n\n".join(
        f"processor\t: {number}\nmodel name\t: X: Y\nphysical id\t: {package}\ncore id\t\t: {core}\n"
        for number, package, core in processors
    )


TWO_SOCKETS = cpuinfo(*((number, number // 4 % 2, number % 4) for number in range(16)))


def test_two_halves_of_a_core_are_one() -> None:
    assert physical_cores(TWO_SOCKETS, set(range(16))) == 8
    assert physical_cores(TWO_SOCKETS, {0, 8}) == 1
    assert physical_cores(TWO_SOCKETS, {0, 1, 4}) == 3


def test_a_processor_that_names_no_cores_counts_its_processors() -> None:
    assert physical_cores("processor\t: 0\nBogoMIPS\t: 50\n\nprocessor\t: 1\n", {0, 1}) == 2


@pytest.mark.parametrize(("written", "whole"), [("max 100000", 0), ("150000 100000", 2), ("50000 100000", 1)])
def test_a_container_counts_its_quota(tmp_path: Path, written: str, whole: int) -> None:
    (tmp_path / "cpu.max").write_text(written + "\n")
    assert cpu_quota(tmp_path) == whole


@pytest.mark.parametrize(("quota", "whole"), [("-1", 0), ("400000", 4)])
def test_an_older_container_too(tmp_path: Path, quota: str, whole: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cpu_quota(tmp_path) == whole
    assert cpu_quota(tmp_path / "absent") == 0


def test_torch_is_told_once_and_what_was_asked() -> None:
    import torch

    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before, rounded = torch.get_num_threads(), (cudnn.allow_tf32, products.allow_tf32)
    try:
        cudnn.allow_tf32 = products.allow_tf32 = True
        assert set_threads(1) == torch.get_num_threads() == 1
        assert set_threads(None) == torch.get_num_threads() == default_threads() >= 1
        assert not cudnn.allow_tf32  # on CUDA, float32 stays float32
        assert not products.allow_tf32
    finally:
        torch.set_num_threads(before)
        cudnn.allow_tf32, products.allow_tf32 = rounded
