"""Compare time to first audio and total time of two servers with the same model, in alternating requests.

    .venv-cluster/bin/legato serve --port 8001 --threads 1 &
    .venv-cluster/bin/legato cluster serve --replicas 1 --port 8002 --threads 1 &
    .venv-cluster/bin/python -m benchmarks.cluster.overhead http://127.0.0.1:8001 http://127.0.0.1:8002

Times are those of the client, from sending the request to the first byte of audio and to the last. Keeps no state.
"""

from __future__ import annotations

import argparse
import time

import httpx
import numpy as np

TEXT = "The quick brown fox jumps over the lazy dog."
WARM_UP = 3


def measure(url: str, seed: int) -> tuple[float, float]:
    """Seconds to the first and to the last byte of one request."""
    body = {"input": TEXT, "response_format": "pcm", "seed": seed}
    started_s = time.perf_counter()
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=60) as response:
        response.raise_for_status()
        pieces = response.iter_raw()
        next(pieces)
        first_s = time.perf_counter() - started_s
        for _ in pieces:
            pass
    return first_s, time.perf_counter() - started_s


def main() -> None:
    """Print a table of both servers and of the differences between paired requests."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("urls", nargs=2, metavar="URL")
    parser.add_argument("--requests", type=int, default=100)
    arguments = parser.parse_args()
    for url in arguments.urls:
        for seed in range(WARM_UP):
            measure(url, seed)
    times = np.array([[measure(url, seed) for url in arguments.urls] for seed in range(arguments.requests)])
    rows = [(url, times[:, index]) for index, url in enumerate(arguments.urls)]
    rows.append(("difference", times[:, 1] - times[:, 0]))
    print(f"{'':32} first audio, ms (p50, p99)   total, ms (p50, p99)")
    for name, values in rows:
        first, total = (np.percentile(1000 * values[:, column], [50, 99]) for column in (0, 1))
        print(f"{name:32} {first[0]:12.1f} {first[1]:12.1f} {total[0]:14.1f} {total[1]:9.1f}")


if __name__ == "__main__":
    main()
