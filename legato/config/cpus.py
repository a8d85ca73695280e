"""Properties of the CPU: cores that this process may use, CPU name, vector instruction set.

The number of usable cores is the smallest of three limits: the CPU affinity (`taskset`), counted in physical cores; the
CPU quota of the control group and of every group above it (containers, systemd); and the machine. Two threads on one
physical core slow each other down, and a process that uses up its quota is paused until the next period.
Functions take the root of the file system, so that tests can pass another one. Holds no state.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}


def default_threads() -> int:
    """Usable cores of this process; at least 1."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    return usable_cores(ROOT, allowed)


def usable_cores(root: Path, allowed: set[int]) -> int:
    """Physical cores of the `allowed` processors, at most the processors that the CPU quotas grant; at least 1.

    A quota of 1.5 processors counts as 1: a second thread would use it up before the end of the period.
    """
    cores, quota = physical_cores(root, allowed), cpu_quota(root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def physical_cores(root: Path, allowed: set[int]) -> int:
    """Number of physical cores of the `allowed` processors, from `/sys`, else from `/proc/cpuinfo`.

    A processor whose core is not listed counts as a core.
    """
    described = _cpuinfo_cores(root)
    cores = {_sysfs_core(root, number) or described.get(number) or (str(number),) for number in allowed}
    return len(cores)


def _sysfs_core(root: Path, number: int) -> tuple[str, ...] | None:
    """(package, core) of a processor. Includes the die, because core ids may repeat on each die of a package."""
    folder = root / "sys/devices/system/cpu" / f"cpu{number}" / "topology"
    names = ("physical_package_id", "die_id", "core_id")
    if not (folder / "core_id").is_file():
        return None
    return tuple(_read(folder / name) or "0" for name in names)


def _cpuinfo_cores(root: Path) -> dict[int, tuple[str, ...]]:
    """Processor -> (package, core), for the processors whose core is listed."""
    cores: dict[int, tuple[str, ...]] = {}
    for block in _read(root / "proc/cpuinfo").split("\n\n"):
        facts = _facts(block)
        if facts.get("processor", "").isdecimal() and "core id" in facts:
            cores[int(facts["processor"])] = (facts.get("physical id", "0"), facts["core id"])
    return cores


def cpu_quota(root: Path) -> float | None:
    """Processors that the CPU quotas of this process's control groups grant (cgroup v2 and v1); None without a quota.

    A group cannot use more than the groups above it, so the smallest quota counts.
    """
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        mounts = root / "sys/fs/cgroup"
        if not controllers:
            hierarchies = [mounts, mounts / "unified"]
        elif "cpu" in controllers.split(","):
            hierarchies = [mounts / name for name in dict.fromkeys((controllers, "cpu", "cpu,cpuacct"))]
        else:
            continue
        # Inside a container the path may be that of the host, while only the container's own group is mounted.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for hierarchy in hierarchies:
            for depth in range(len(parts) + 1):
                yield from _group_quota(hierarchy.joinpath(*parts[:depth]))


def _group_quota(group: Path) -> Iterator[float]:
    """The quota of one group, if it has one."""
    limits = _read(group / "cpu.max").split()
    if not limits:
        limits = [_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")]
    if len(limits) == 2 and all(limit.isdecimal() for limit in limits) and int(limits[1]) > 0:  # else "max" or -1
        yield int(limits[0]) / int(limits[1])


def cpu_name_and_flags() -> tuple[str, frozenset[str]]:
    """CPU model name and feature flags; no flags where the system has no `/proc/cpuinfo`."""
    facts = _facts(_read(ROOT / "proc/cpuinfo"))
    name = facts.get("model name") or platform.processor() or platform.machine()
    return name, frozenset(facts.get("flags", facts.get("Features", "")).split())


def vector_isa(flags: frozenset[str], machine: str) -> str:
    """Widest vector instruction set that the CPU kernels use; "" if they use none. The rule of `kernels/lanes.h`."""
    if flags >= _AVX512:
        return "AVX-512"
    if {"avx2", "fma"} <= flags:
        return "AVX2"
    return "NEON" if machine in ("aarch64", "arm64") else ""


def kernel_instructions(flags: frozenset[str], machine: str) -> str:
    """All instruction sets that the CPU kernels use, such as "AVX-512 VNNI BF16 AMX"; "" if they use none.

    Kernels with equal instructions give equal bits: the number of lanes and the conversions are part of the result.
    """
    vectors = vector_isa(flags, machine)
    extra: tuple[tuple[str, str], ...]
    if vectors == "AVX-512":
        extra = (("avx512_vnni", "VNNI"), ("avx512_bf16", "BF16"), ("amx_int8", "AMX"))
    elif vectors == "AVX2":
        extra = (("avx_vnni", "VNNI"),)
    else:
        extra = (("asimddp", "DOTPROD"), ("i8mm", "I8MM"), ("bf16", "BF16"))
    return " ".join((vectors, *(name for flag, name in extra if flag in flags))) if vectors else ""


def _read(path: Path) -> str:
    """The text of a file, "" if it does not exist or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _facts(cpuinfo: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in cpuinfo.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
