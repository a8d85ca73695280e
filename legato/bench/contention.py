"""RTF while other processes keep cores busy, with one and with several threads.

The processes are started here and end with the measurement. The cases alternate, so that a slow period of the machine
affects all of them equally. A run generates one stream, without client and engine thread.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from legato.backends.base import Backend
from legato.bench.batch import SteadyBatch
from legato.bench.environment import model_info, this_machine
from legato.bench.records import ContentionRecord
from legato.bench.rendering import ReportTable
from legato.bench.workload import plain_request
from legato.config.engine import EngineConfig
from legato.engine.assembly import assemble
from legato.engine.frontend import create_front_end
from legato.engine.packetizer import PacketPolicy

SPINNER = """
import os
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
"""Keeps one core busy. Ends if its parent dies without stopping it."""
MAX_SEQ_LEN = 512


@dataclass(frozen=True, slots=True)
class ContentionSettings:
    """Each round measures every combination of `busy` (number of processes) and `threads`.

    A run generates `frames` frames in packets of `packet_frames`.
    """

    busy: tuple[int, ...]
    threads: tuple[int, ...]
    packet_frames: tuple[int, ...]
    frames: int
    rounds: int
    warm_up_frames: int = 8


@contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start `count` processes that keep one core each busy, and stop them when the block ends."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            processes.append(subprocess.Popen([sys.executable, "-c", SPINNER], stdout=subprocess.PIPE))
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def measure_contention(
    backend: Backend, name: str, device: str, settings: ContentionSettings, set_threads: Callable[[int], object]
) -> Iterator[ContentionRecord]:
    """Yield a record after each run. `set_threads` sets the number of threads of the kernels."""
    front_end = create_front_end(backend.model)
    request = replace(plain_request(backend.model, front_end), packets=PacketPolicy(settings.packet_frames))
    config = EngineConfig(max_num_seqs=1, kv_slots=1, max_seq_len=MAX_SEQ_LEN)
    info = model_info(name, backend)

    def run(frames: int) -> float:
        parts = assemble(backend, config, time.perf_counter)
        batch = SteadyBatch(parts, front_end, request, streams=1, frames=frames)
        started_s = time.perf_counter()
        batch.run()
        return time.perf_counter() - started_s

    run(settings.warm_up_frames)
    audio_s = settings.frames * info.frame_samples / info.sample_rate_hz
    for number in range(settings.rounds):
        for busy in settings.busy:
            with busy_processes(busy):
                for threads in settings.threads:
                    set_threads(threads)
                    machine = this_machine(device)
                    # During the warm-up the OS scheduler and the thread pool adapt to the busy processes.
                    run(settings.warm_up_frames)
                    total_s = run(settings.frames)
                    yield ContentionRecord(
                        machine=machine,
                        model=info,
                        packet_frames=settings.packet_frames,
                        round=number,
                        busy_processes=busy,
                        threads=threads,
                        frames=settings.frames,
                        total_s=total_s,
                        real_time_factor=total_s / audio_s,
                    )


def contention_tables(records: Sequence[ContentionRecord]) -> Iterator[ReportTable]:
    """One table for each model: the median RTF of each case, its range, and its ratios to the idle machine."""
    for name in dict.fromkeys(record.model.name for record in records):
        cases: dict[tuple[int, int], list[float]] = {}
        for record in records:
            if record.model.name == name:
                cases.setdefault((record.busy_processes, record.threads), []).append(record.real_time_factor)
        medians = {case: statistics.median(values) for case, values in cases.items()}
        idle_threads = [threads for busy, threads in cases if busy == 0]
        model = next(record.model for record in records if record.model.name == name)
        yield ReportTable(
            title=f"RTF with busy processes: {name} ({model.quantization}, codec {model.codec_dtype})",
            headings=("busy processes", "threads", "RTF", "range", *(f"/ idle, {each} thr." for each in idle_threads)),
            rows=tuple(
                (
                    str(busy),
                    str(threads),
                    f"{medians[busy, threads]:.3f}",
                    f"{min(values):.3f} to {max(values):.3f}",
                    *(f"{medians[busy, threads] / medians[0, each]:.2f}" for each in idle_threads),
                )
                for (busy, threads), values in sorted(cases.items())
            ),
            text_columns=0,
            note=f"Medians of {max(map(len, cases.values()))} alternating runs of one stream. The last columns are "
            "ratios to the RTF of the idle machine.",
        )
