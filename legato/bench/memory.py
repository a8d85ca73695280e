"""What a serving process keeps in memory, step by step: program, weights, slots, and streams that speak in all of them.

Owns its loop for one measurement. Private memory is what only this process has and the system cannot drop; pages of
mapped files (weights, libraries) can be dropped and read again, and are told apart. Times nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from legato.bench.chorus import Chorus
from legato.bench.facts import Machine, ModelFacts, model_facts, this_machine
from legato.bench.grid import Grid
from legato.bench.request import plain_request
from legato.config.engine import EngineConfig
from legato.engine.assembly import Works, assemble
from legato.engine.frontend import front_end_of
from legato.errors import UnsupportedError
from legato.models.load import LoadedModel

_SMAPS = Path("/proc/self/smaps_rollup")
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """Memory after one `stage`. `private_bytes` of this process (of the device on CUDA), `mapped_bytes` of files.

    `streams` and `positions` of each of their `slots` are what the engine was made for.
    """

    machine: Machine
    model: ModelFacts
    streams: int
    slots: int
    positions: int
    stage: str
    private_bytes: int
    mapped_bytes: int


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes now."""

    private: int
    mapped: int


def use_on(device: str) -> Use:
    """Of this process as Linux tells it, or of the CUDA device as torch does. `UnsupportedError` elsewhere."""
    if torch.device(device).type == "cuda":
        return Use(torch.cuda.memory_allocated(device), 0)
    if not _SMAPS.exists():
        raise UnsupportedError(f"private memory is read from {_SMAPS}, which this system does not have (Linux does)")
    told = dict(line.split(":", 1) for line in _SMAPS.read_text(encoding="ascii").splitlines()[1:])
    resident, private = (1024 * int(told[name].split()[0]) for name in ("Rss", "Anonymous"))
    return Use(private, resident - private)


def measure_memory(
    load: Callable[[], LoadedModel],
    name: str,
    device: str,
    *,
    streams: int,
    positions: int,
    frames: int,
    graphs: bool = True,
) -> Iterator[MemoryRecord]:
    """A record after each stage, as it is reached. `frames`: how many each stream speaks in the last one."""
    before = use_on(device)
    model = load()
    facts, machine = model_facts(name, model, graphs=graphs), this_machine(device)
    config = EngineConfig(streams=streams, kv_slots=streams + 1, positions=positions, graphs=graphs)

    def record(stage: str, use: Use) -> MemoryRecord:
        return MemoryRecord(machine, facts, streams, config.kv_slots, positions, stage, use.private, use.mapped)

    yield record("program", before)
    yield record("weights", use_on(device))
    works = assemble(model, config, time.perf_counter)
    fill(works)
    yield record("slots, every position written", use_on(device))
    front_end = front_end_of(model)
    chorus = Chorus(works, front_end, plain_request(model, front_end), streams=streams, frames=frames)
    most = use_on(device)
    while chorus.turn():
        now = use_on(device)
        most = Use(max(most.private, now.private), max(most.mapped, now.mapped))
    chorus.stop()
    yield record("all streams speaking, the most", most)


def fill(works: Works) -> None:
    """Write to every position of every slot: memory that was only promised becomes memory that is used."""
    cache = works.kv_pool.cache
    with torch.inference_mode():
        cache.keys.fill_(1.0)
        cache.values.fill_(1.0)


def memory_tables(records: Sequence[MemoryRecord]) -> Iterator[Grid]:
    """One table for each model and size."""
    for model, streams, slots, positions in dict.fromkeys((r.model, r.streams, r.slots, r.positions) for r in records):
        chosen = [r for r in records if (r.model, r.streams, r.positions) == (model, streams, positions)]
        formats = model.talker_dtype if model.quantisation == "none" else model.quantisation
        yield Grid(
            title=f"Memory of {model.name} ({formats}, codec {model.codec_dtype})",
            headings=("after", "private MiB", "mapped files MiB"),
            rows=tuple((r.stage, f"{r.private_bytes / _MIB:.0f}", f"{r.mapped_bytes / _MIB:.0f}") for r in chosen),
            note=f"{streams} streams, {slots} slots of {positions} positions. Private: what the system cannot drop. "
            "Mapped files: weights and libraries, as far as they are in memory.",
        )
