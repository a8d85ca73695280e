"""Memory of a serving process after each stage: program, weights, KV slots, all streams active.

Private memory belongs to this process and cannot be evicted by the operating system. Pages of mapped files (weights,
libraries) can be evicted and read again, and are counted separately. Time is not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from legato.backends.base import Backend
from legato.bench.batch import SteadyBatch
from legato.bench.environment import model_info, this_machine
from legato.bench.records import MIB, MemoryRecord
from legato.bench.rendering import ReportTable
from legato.bench.workload import plain_request
from legato.config.engine import EngineConfig
from legato.engine.assembly import EngineParts, assemble
from legato.engine.frontend import create_front_end
from legato.errors import UnsupportedError

_SMAPS = Path("/proc/self/smaps_rollup")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory in use, in bytes."""

    private: int
    mapped: int


def memory_use(device: str) -> MemoryUse:
    """Memory of the CUDA device, else of this process on Linux. `UnsupportedError` on other systems."""
    if torch.device(device).type == "cuda":
        return MemoryUse(torch.cuda.memory_allocated(device), 0)
    if not _SMAPS.exists():
        raise UnsupportedError(f"private memory is read from {_SMAPS}, which exists only on Linux")
    smaps = dict(line.split(":", 1) for line in _SMAPS.read_text(encoding="ascii").splitlines()[1:])
    resident, private = (1024 * int(smaps[name].split()[0]) for name in ("Rss", "Anonymous"))
    return MemoryUse(private, resident - private)


def measure_memory(
    load: Callable[[], Backend],
    name: str,
    device: str,
    *,
    streams: int,
    max_seq_len: int,
    frames: int,
    cuda_graphs: bool = True,
) -> Iterator[MemoryRecord]:
    """Yield a record after each stage. `frames`: frames of each stream in the last stage."""
    before = memory_use(device)
    backend = load()
    model = backend.model
    info, machine = model_info(name, backend, cuda_graphs=cuda_graphs), this_machine(device)
    config = EngineConfig(max_num_seqs=streams, kv_slots=streams + 1, max_seq_len=max_seq_len, cuda_graphs=cuda_graphs)

    def record(stage: str, use: MemoryUse) -> MemoryRecord:
        return MemoryRecord(
            machine=machine,
            model=info,
            streams=streams,
            kv_slots=config.kv_slots,
            max_seq_len=max_seq_len,
            stage=stage,
            private_bytes=use.private,
            mapped_bytes=use.mapped,
        )

    yield record("program", before)
    yield record("weights", memory_use(device))
    parts = assemble(backend, config, time.perf_counter)
    write_all_slots(parts)
    yield record("KV slots, all positions written", memory_use(device))
    front_end = create_front_end(model)
    batch = SteadyBatch(parts, front_end, plain_request(model, front_end), streams=streams, frames=frames)
    peak = memory_use(device)
    while batch.step():
        now = memory_use(device)
        peak = MemoryUse(max(peak.private, now.private), max(peak.mapped, now.mapped))
    batch.stop()
    yield record("all streams active, peak", peak)


def write_all_slots(parts: EngineParts) -> None:
    """Write to every position of every KV slot, because the OS commits memory on first write, not on allocation."""
    cache = parts.kv_pool.cache
    with torch.inference_mode():
        cache.keys.fill_(1.0)
        cache.values.fill_(1.0)


def memory_tables(records: Sequence[MemoryRecord]) -> Iterator[ReportTable]:
    """One table for each model and size."""
    groups: dict[tuple[object, ...], list[MemoryRecord]] = {}
    for record in records:
        groups.setdefault((record.model, record.streams, record.kv_slots, record.max_seq_len), []).append(record)
    for group in groups.values():
        first = group[0]
        model = first.model
        dtype = model.talker_dtype if model.quantization == "none" else model.quantization
        yield ReportTable(
            title=f"Memory of {model.name} ({dtype}, codec {model.codec_dtype})",
            headings=("after", "private MiB", "mapped files MiB"),
            rows=tuple(
                (each.stage, f"{each.private_bytes / MIB:.0f}", f"{each.mapped_bytes / MIB:.0f}") for each in group
            ),
            note=f"{first.streams} streams, {first.kv_slots} KV slots of {first.max_seq_len} positions. Private: "
            "memory that cannot be evicted. Mapped files: resident pages of weights and libraries.",
        )
