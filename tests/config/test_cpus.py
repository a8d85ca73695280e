"""The default thread count: physical cores, limited by CPU affinity and CPU quotas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from legato.config.cpus import cpu_quota, default_threads, physical_cores, usable_cores, vector_isa

PERIOD = 100_000


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def cpuinfo(root: Path, *processors: tuple[int, int, int]) -> None:
    """`/proc/cpuinfo` with blocks of (processor, physical id, core id)."""
    blocks = (
        f"processor\t: {number}\nmodel name\t: X: Y\nphysical id\t: {package}\ncore id\t\t: {core}\n"
        for number, package, core in processors
    )
    write(root / "proc/cpuinfo", "\n\n".join(blocks))


def sysfs(root: Path, *processors: tuple[int, int, int]) -> None:
    """`/sys/devices/system/cpu` with (processor, package, core)."""
    for number, package, core in processors:
        folder = root / f"sys/devices/system/cpu/cpu{number}/topology"
        write(folder / "physical_package_id", str(package))
        write(folder / "core_id", str(core))


TWO_SOCKETS = [(number, number // 4 % 2, number % 4) for number in range(16)]


@pytest.mark.parametrize("source", [cpuinfo, sysfs])
def test_hyper_threads_of_a_core_count_once(tmp_path: Path, source: object) -> None:
    assert callable(source)
    source(tmp_path, *TWO_SOCKETS)
    assert physical_cores(tmp_path, set(range(16))) == 8
    assert physical_cores(tmp_path, {0, 8}) == 1
    assert physical_cores(tmp_path, {0, 1, 4}) == 3


def test_equal_core_ids_on_different_dies_are_different_cores(tmp_path: Path) -> None:
    sysfs(tmp_path, (0, 0, 0), (1, 0, 0))
    write(tmp_path / "sys/devices/system/cpu/cpu1/topology/die_id", "1")
    assert physical_cores(tmp_path, {0, 1}) == 2


def test_processors_are_counted_if_there_are_no_core_ids(tmp_path: Path) -> None:
    assert physical_cores(tmp_path, {0, 1}) == 2
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 50\n\nprocessor\t: 1")
    assert physical_cores(tmp_path, {0, 1}) == 2


@pytest.mark.parametrize(
    ("limits", "quota"), [(f"max {PERIOD}", None), (f"150000 {PERIOD}", 1.5), (f"50000 {PERIOD}", 0.5)]
)
@pytest.mark.parametrize("mount", ["sys/fs/cgroup", "sys/fs/cgroup/unified"])
def test_cgroup_v2_quota(tmp_path: Path, mount: str, limits: str, quota: float | None) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/")
    write(tmp_path / mount / "cpu.max", limits)
    assert cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(("limit", "quota"), [("-1", None), ("400000", 4.0)])
@pytest.mark.parametrize(
    ("controllers", "mount"), [("cpu", "cpu"), ("cpu,cpuacct", "cpu,cpuacct"), ("cpuacct,cpu", "cpu")]
)
def test_cgroup_v1_quota(tmp_path: Path, controllers: str, mount: str, limit: str, quota: float | None) -> None:
    write(tmp_path / "proc/self/cgroup", f"4:memory:/\n2:{controllers}:/docker/abc")
    group = tmp_path / "sys/fs/cgroup" / mount
    write(group / "cpu.cfs_quota_us", limit)
    write(group / "cpu.cfs_period_us", str(PERIOD))
    assert cpu_quota(tmp_path) == quota


def test_the_smallest_quota_of_all_parent_groups_counts(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/user.slice/speech.service")
    groups = tmp_path / "sys/fs/cgroup"
    write(groups / "user.slice/speech.service/cpu.max", f"800000 {PERIOD}")
    assert cpu_quota(tmp_path) == 8
    write(groups / "user.slice/cpu.max", f"300000 {PERIOD}")
    assert cpu_quota(tmp_path) == 3
    write(groups / "other.slice/cpu.max", f"100000 {PERIOD}")
    assert cpu_quota(tmp_path) == 3


def test_no_control_groups_mean_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000")
    write(tmp_path / "proc/self/cgroup", "2:cpu:/")
    assert cpu_quota(tmp_path) is None  # a quota without its period


@pytest.mark.parametrize(
    ("granted", "allowed", "threads"),
    [
        (None, range(16), 8),
        (150_000, range(16), 1),  # a second thread would use up the quota, and both would be stopped
        (50_000, range(16), 1),
        (300_000, range(16), 3),
        (1_600_000, range(16), 8),
        (1_600_000, (0, 8), 1),
    ],
)
def test_usable_cores_is_the_smallest_limit(
    tmp_path: Path, granted: int | None, allowed: range | tuple[int, ...], threads: int
) -> None:
    sysfs(tmp_path, *TWO_SOCKETS)
    write(tmp_path / "proc/self/cgroup", "0::/")
    write(tmp_path / "sys/fs/cgroup/cpu.max", f"{granted or 'max'} {PERIOD}")
    assert usable_cores(tmp_path, set(allowed)) == threads


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_taskset_limits_the_default() -> None:
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    program += "from legato.config.cpus import default_threads; print(default_threads())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
    assert default_threads() >= 1


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
