"""Compare the simulation with a running cluster: fit step times at fixed concurrency, then predict a Poisson load.

    legato cluster serve --replicas 2 --threads 1 --max-num-seqs 4 --port 8002 &
    python -m benchmarks.cluster.check_simulation http://127.0.0.1:8002

The step times come from closed groups of 1 to 4 streams on each replica; the predicted requests are others, with random
arrivals. Times are those of the client. Keeps no state.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from legato.cluster.simulate.model import FRAME_S, Arrival, ClusterModel, Outcome, StepTimes, simulate

SENTENCE = "The quick brown fox jumps over the lazy dog, and nobody in the village minds it at all. "
LONG = SENTENCE * 4
FRAME_BYTES = 2 * 1920


def speak(client: httpx.Client, url: str, text: str, seed: int) -> tuple[float, float, int]:
    """Seconds to the first and to the last byte, and frames of one request."""
    started_s = time.perf_counter()
    body = {"input": text, "response_format": "pcm", "seed": seed}
    with client.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=120) as response:
        response.raise_for_status()
        first_s, size = 0.0, 0
        for piece in response.iter_raw():
            first_s = first_s or time.perf_counter() - started_s
            size += len(piece)
    return first_s, time.perf_counter() - started_s, round(size / FRAME_BYTES)


def fit(client: httpx.Client, url: str, replicas: int, slots: int) -> tuple[StepTimes, float]:
    """Step times by streams on each replica, and the first audio of one stream without its step."""
    points, first_s = [], []
    for streams in range(1, slots + 1):
        steps = []
        for repeat in range(3):
            with ThreadPoolExecutor(streams * replicas) as pool:
                jobs = [pool.submit(speak, client, url, LONG, 100 * repeat + n) for n in range(streams * replicas)]
                results = [job.result() for job in jobs]
            # A frame takes from the first to the last byte; the first packet has one frame.
            steps += [(total_s - first) / (frames - 1) for first, total_s, frames in results]
            if streams == 1:
                first_s += [first for first, _, _ in results]
        points.append((streams, statistics.median(steps)))
    return StepTimes(tuple(points), prefill_s=0.0), max(0.0, statistics.median(first_s) - points[0][1])


def measure(client: httpx.Client, url: str, requests: int, rate_hz: float, seed: int) -> list[tuple[float, ...]]:
    """Arrival, first audio, total time and frames of random requests."""
    rng, at_s, jobs = random.Random(seed), 0.0, []
    started_s = time.perf_counter()
    with ThreadPoolExecutor(64) as pool:
        for number in range(requests):
            at_s += rng.expovariate(rate_hz)
            time.sleep(max(0.0, started_s + at_s - time.perf_counter()))
            jobs.append((at_s, pool.submit(speak, client, url, SENTENCE * rng.randint(1, 4), 1000 + number)))
        return [(arrival_s, *job.result()) for arrival_s, job in jobs]


def main() -> None:
    """Print measured and predicted times side by side."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", metavar="URL")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--slots", type=int, default=4, help="--max-num-seqs of the cluster")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--use", default="0.4,0.7", help="mean shares of the slots in use")
    options = parser.parse_args()
    limits = httpx.Limits(max_connections=None)
    with httpx.Client(limits=limits, trust_env=False) as client:
        for seed in range(6):
            speak(client, options.url, SENTENCE, seed)
        steps, overhead_s = fit(client, options.url, options.replicas, options.slots)
        listed = ", ".join(f"{streams}: {1000 * step_s:.2f}" for streams, step_s in steps.points)
        print(f"ms per step by streams: {listed}; first audio beside the step: {1000 * overhead_s:.1f} ms")
        model = ClusterModel(
            steps, slots=options.slots, replicas=options.replicas, overhead_s=overhead_s, proxies=1, queue=64
        )
        mean_frames = 2.5 * 5.5 / FRAME_S
        for use in map(float, options.use.split(",")):
            full_hz = options.replicas * options.slots / (mean_frames * steps.step_s(options.slots))
            found = measure(client, options.url, options.requests, use * full_hz, seed=int(100 * use))
            predicted = simulate([Arrival(at_s, int(frames)) for at_s, _, _, frames in found], model, seed=0)
            measured = Outcome([each[1] for each in found], [each[2] for each in found])
            show(use, measured, predicted)


def show(use: float, measured: Outcome, predicted: Outcome) -> None:
    """Print one load."""
    print(f"{'':24} first audio, ms (p50, p90)   total, s (mean)")
    for name, each in (("measured", measured), ("predicted", predicted)):
        p50, p90 = (1000 * each.first_audio_quantile(q) for q in (0.5, 0.9))
        print(f"use {use:.0%}, {name:14} {p50:10.1f} {p90:10.1f} {statistics.mean(each.total_s):14.2f}")


if __name__ == "__main__":
    main()
