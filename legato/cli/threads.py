"""How many threads the arithmetic gets: physical cores that this process may use, unless the user says otherwise.

Two threads on one core's two halves slow each other down, and more threads than a container's share of a machine make
it many times slower. Owns no state; `load.py` sets torch once.
"""

from __future__ import annotations

import os
from pathlib import Path


def default_threads() -> int:
    """Physical cores allowed by affinity and by the container's quota; at least 1."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cpuinfo = Path("/proc/cpuinfo")
    cores = physical_cores(cpuinfo.read_text(), allowed) if cpuinfo.is_file() else len(allowed)
    quota = cpu_quota(Path("/sys/fs/cgroup"))
    return max(1, min(cores, quota) if quota else cores)


def physical_cores(cpuinfo: str, allowed: set[int]) -> int:
    """Distinct cores among the `allowed` processors of a Linux `/proc/cpuinfo`; all where it names no cores."""
    cores = set()
    for block in cpuinfo.split("\n\n"):
        facts = dict(_fact(line) for line in block.splitlines() if ":" in line)
        if facts.get("processor", "").isdecimal() and int(facts["processor"]) in allowed and "core id" in facts:
            cores.add((facts.get("physical id", "0"), facts["core id"]))
    return len(cores) or len(allowed)


def cpu_quota(cgroup: Path) -> int:
    """Whole processors that a container's quota grants, rounded up; 0 where there is no quota (cgroup v2 and v1)."""
    for quota_file, period_file in (("cpu.max", ""), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        if not (cgroup / quota_file).is_file():
            continue
        parts = (cgroup / quota_file).read_text().split()
        if period_file and (cgroup / period_file).is_file():
            parts += (cgroup / period_file).read_text().split()
        if len(parts) == 2 and parts[0].isdecimal() and int(parts[1]) > 0:
            return -(-int(parts[0]) // int(parts[1]))
    return 0


def _fact(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
