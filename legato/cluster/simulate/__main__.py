"""`python -m legato.cluster.simulate`: print a capacity plan from measured step times.

Holds no state. The default file of the step times is not part of the package: it is measured with `legato bench batch`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from legato.cluster.simulate.model import ClusterModel, poisson, simulate
from legato.cluster.simulate.plan import Goal, Load, Plan, find_plan, read_steps
from legato.errors import LegatoError


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m legato.cluster.simulate",
        description="Replicas needed for a number of concurrent streams, from measured step times.",
    )
    parser.add_argument(
        "--steps", type=Path, required=True, help="records of `legato bench batch MODEL --records FILE`"
    )
    parser.add_argument(
        "--streams", type=float, default=1000.0, help="streams that play at the same time (%(default)s)"
    )
    parser.add_argument("--mean-s", type=float, default=6.0, help="mean speech of a request in seconds (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated time (%(default)s)")
    parser.add_argument("--slots", type=int, help="streams of one replica (the most that keep real time)")
    parser.add_argument("--p99-ms", type=float, default=500.0, help="goal for the first audio (%(default)s)")
    parser.add_argument("--cell-streams", type=float, default=1000.0, help="streams of one Ray cluster (%(default)s)")
    parser.add_argument("--price", type=float, help="price of one replica per hour, in any currency")
    parser.add_argument(
        "--burst", type=float, help="also simulate autoscaling: the load rises by this factor for 120 s"
    )
    parser.add_argument("--start-s", type=float, default=60.0, help="time until a new replica serves (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    found = parser.parse_args(arguments)
    for name in ("streams", "mean_s", "seconds", "p99_ms", "cell_streams"):
        if getattr(found, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} must be positive")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan. Returns the exit code."""
    options = parse(arguments)
    try:
        steps = read_steps(options.steps.read_text(encoding="utf-8").splitlines())
        slots = options.slots or steps.real_time_streams()
        if slots == 0:
            sys.stderr.write("error: one stream is already slower than real time on this machine\n")
            return 1
        model = ClusterModel(steps, slots, replicas=1, start_s=options.start_s)
        load = Load(options.streams, options.mean_s, options.seconds)
        goal = Goal(p99_s=options.p99_ms / 1000)
        plan = find_plan(load, model, goal, cell_streams=options.cell_streams, seed=options.seed)
    except (LegatoError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    show_plan(plan, slots, options.price)
    if options.burst is not None:
        show_burst(plan, replace(load, streams=load.streams / plan.cells), model, options.burst, options.seed)
    return 0


def show_plan(plan: Plan, slots: int, price: float | None) -> None:
    """Print the replicas, the simulated latency and the cost."""
    outcome = plan.outcome
    print(f"replicas        {plan.total_replicas} ({plan.cells} x {plan.replicas}, {slots} slots each)")
    print(f"first audio     p50 {1000 * outcome.first_audio_quantile(0.5):.0f} ms", end=", ")
    print(f"p99 {1000 * outcome.first_audio_quantile(0.99):.0f} ms, of {outcome.requests} requests")
    print(f"refused         {outcome.refused_share:.2%}; interrupted {outcome.underrun_share:.2%}")
    hours = outcome.replica_hours_per_speech_hour
    print(f"replica hours   {hours:.2f} per hour of speech", end="")
    print("" if price is None else f"; cost {hours * price:.3f} per hour of speech")


def show_burst(plan: Plan, load: Load, model: ClusterModel, factor: float, seed: int) -> None:
    """Print what autoscaling does with a burst, beside a cluster that stays as it is."""
    rates = [(60.0, load.rate_hz), (120.0, factor * load.rate_hz), (60.0, load.rate_hz)]
    arrivals = poisson(rates, load.mean_s, seed)
    for name, limit in (("fixed", None), ("autoscaled", max(plan.replicas, round(plan.replicas * factor * 1.5)))):
        outcome = simulate(arrivals, replace(model, replicas=plan.replicas, max_replicas=limit), seed)
        print(f"burst, {name:11} p99 {outcome.first_audio_quantile(0.99):.2f} s", end=", ")
        print(f"refused {outcome.refused_share:.1%}, interrupted {outcome.underrun_share:.1%}", end=", ")
        print(f"at most {outcome.most_replicas} replicas")


if __name__ == "__main__":
    sys.exit(main())
