"""Default thread count and CPU facts: physical cores available to this process, CPU name, vector instruction set.

Two threads on one core's hyper-threads slow each other down, and more threads than a container's CPU quota are many
times slower. Holds no state; `model_options.set_threads` configures torch.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}


def default_threads() -> int:
    """Physical cores allowed by the CPU affinity and by the container's quota; at least 1."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = physical_cores(_CPUINFO.read_text(), allowed) if _CPUINFO.is_file() else len(allowed)
    quota = cpu_quota(Path("/sys/fs/cgroup"))
    return max(1, min(cores, quota) if quota else cores)


def physical_cores(cpuinfo: str, allowed: set[int]) -> int:
    """Number of physical cores of the `allowed` processors in a Linux `/proc/cpuinfo`.

    If the file has no core ids, every allowed processor counts as a core.
    """
    cores = set()
    for block in cpuinfo.split("\n\n"):
        facts = _facts(block)
        if facts.get("processor", "").isdecimal() and int(facts["processor"]) in allowed and "core id" in facts:
            cores.add((facts.get("physical id", "0"), facts["core id"]))
    return len(cores) or len(allowed)


def cpu_quota(cgroup: Path) -> int:
    """Processors granted by a container's CPU quota (cgroup v2 or v1), rounded up; 0 if there is no quota."""
    for quota_file, period_file in (("cpu.max", ""), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        if not (cgroup / quota_file).is_file():
            continue
        parts = (cgroup / quota_file).read_text().split()
        if period_file and (cgroup / period_file).is_file():
            parts += (cgroup / period_file).read_text().split()
        if len(parts) == 2 and parts[0].isdecimal() and int(parts[1]) > 0:
            return -(-int(parts[0]) // int(parts[1]))
    return 0


def cpu_name_and_flags() -> tuple[str, frozenset[str]]:
    """CPU model name and feature flags; no flags where the system has no `/proc/cpuinfo`."""
    facts = _facts(_CPUINFO.read_text()) if _CPUINFO.is_file() else {}
    name = facts.get("model name") or platform.processor() or platform.machine()
    return name, frozenset(facts.get("flags", facts.get("Features", "")).split())


def vector_isa(flags: frozenset[str], machine: str) -> str:
    """Widest vector instruction set that the CPU kernels use; "" if they use none. The rule of `kernels/lanes.h`."""
    if flags >= _AVX512:
        return "AVX-512"
    if {"avx2", "fma"} <= flags:
        return "AVX2"
    return "NEON" if machine in ("aarch64", "arm64") else ""


def _facts(cpuinfo: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in cpuinfo.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}
