"""`make parity`: write checkpoints, run the official package on them, compare, and run the negative controls.

    .venv/bin/python -m parity.run --oracle .venv-parity/bin/python [--work build/parity] [--write-fixtures]

Exit status 0 if every comparison holds, every fault is caught, and the committed fixtures equal the current results of
the official package.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from legato.weights.random_checkpoint import write_checkpoint
from parity import cases
from parity.checks import Check, table
from parity.compare import compare_codec, compare_engine, compare_row, compare_speaker, compare_texts
from parity.controls import FAULTS, caught, compare_fault, compare_wrong_language, first_case
from parity.legato_side import ParityModel
from parity.records import Record, read_facts, read_record, write_thin

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures" / "parity"
LIMIT_S = 1800
"""Twelve times the duration of a run on two idle cores; a longer run is considered hung."""
FIXTURE_TOLERANCE = 2e-5
"""Differences of the official package between CPUs are of this size."""


def make_checkpoint(name: str, folder: Path) -> None:
    """Write a checkpoint with random weights in the official layout, replacing an older one."""
    shutil.rmtree(folder, ignore_errors=True)
    write_checkpoint(name, folder)


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """After `limit_s`, print the stack of every thread and exit with status 1."""
    faulthandler.dump_traceback_later(limit_s, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def run_oracle(python: Path, checkpoints: Path, records: Path, names: tuple[str, ...], *, limit_s: float) -> None:
    """Run the official side in its own environment and process; raises `TimeoutExpired` after `limit_s`."""
    root = Path(__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [str(python.absolute()), "-m", "parity.oracle", str(checkpoints.absolute()), str(records.absolute())]
    subprocess.run([*command, *names], check=True, env=environment, cwd=root, timeout=limit_s)


def compare_checkpoint(model: ParityModel, record: Record, checkpoint: str, scratch: Path) -> list[Check]:
    """All comparisons of one checkpoint."""
    checks = compare_codec(model, record) + compare_speaker(model, record) + compare_texts(model, record)
    for case in cases.cases_of(checkpoint):
        tested = model
        if case.stop_at is not None:
            tested = model.stopping(scratch / case.name, record.facts["cases"][case.name]["winner"])
        for index in range(len(case.rows)):
            checks += compare_row(tested, record, case, index)
        if case.sampling is None:
            checks += compare_engine(tested, record, case)
    return checks


def fixture_differences(records: Path, scratch: Path) -> list[str]:
    """Differences between the committed fixtures and the current records."""
    write_thin(records, scratch)
    differences: list[str] = []
    for checkpoint in read_facts(records)["checkpoints"]:
        committed, current = read_record(FIXTURES, checkpoint), read_record(scratch, checkpoint)
        if sorted(committed.arrays) != sorted(current.arrays):
            differences.append(f"{checkpoint}: the fixtures have other cases")
            continue
        for key, value in committed.arrays.items():
            close = np.allclose(value, current.arrays[key], rtol=FIXTURE_TOLERANCE, atol=FIXTURE_TOLERANCE)
            if value.shape != current.arrays[key].shape or not close:
                differences.append(f"{checkpoint}: {key}")
    return differences


def run_controls(checkpoints: Path, records: Path, scratch: Path) -> list[str]:
    """Run all controls; returns the faults that were not detected."""
    missed: list[str] = []
    for number, fault in enumerate(FAULTS):
        record = read_record(records, fault.checkpoint)
        found = caught(compare_fault(fault, checkpoints, record, scratch / f"fault-{number}"), fault.caught_by)
        print(f"  {'caught' if found else 'MISSED'}: {fault.tensor}{list(fault.index)} x {fault.factor:g}")
        if not found:
            missed.append(fault.tensor)
    case = first_case("tiny-custom-voice")
    model = ParityModel.load(checkpoints / case.checkpoint)
    found = caught(compare_wrong_language(model, read_record(records, case.checkpoint), case), "prompt rows")
    print(f"  {'caught' if found else 'MISSED'}: one id of a prompt")
    return missed if found else [*missed, "one id of a prompt"]


def compare_all(checkpoints: Path, records: Path, names: tuple[str, ...], scratch: Path) -> list[Check]:
    """All comparisons of these checkpoints, which are loaded one at a time."""
    checks: list[Check] = []
    for name in names:
        checks += compare_checkpoint(
            ParityModel.load(checkpoints / name), read_record(records, name), name, scratch / f"stop-{name}"
        )
    return checks


def report(title: str, records: Path, checks: list[Check], names: tuple[str, ...]) -> int:
    """Print the table and every failure; returns the number of failures."""
    facts = read_facts(records)
    run = [case for name in names for case in cases.cases_of(name)]
    greedy, rows = sum(case.sampling is None for case in run), sum(len(case.rows) for case in run)
    print(f"\n{title}: {len(run)} cases ({greedy} greedy), {rows} rows, {len(names)} checkpoints; float32, CPU")
    print(f"official package: {', '.join(f'{name} {number}' for name, number in facts['packages'].items())}\n")
    print(table(checks))
    failed = [check for check in checks if not check.passed]
    for check in failed[:40]:
        print(f"FAILED {check.what}, {check.where}: {check.error:.3g} (allowed {check.limit:g}); {check.note}")
    return len(failed)


def run_tiny(oracle: Path, work: Path, *, write_fixtures: bool, limit_s: float) -> tuple[int, int]:
    """The tiny checkpoints, the negative controls and the fixtures; returns numbers of passed and failed checks."""
    checkpoints, records = work / "checkpoints", work / "records"
    for name in cases.CHECKPOINTS:
        make_checkpoint(name, checkpoints / name)
    run_oracle(oracle, checkpoints, records, cases.CHECKPOINTS, limit_s=limit_s)
    if write_fixtures:
        print(f"fixtures: {write_thin(records, FIXTURES):,} bytes")
    with tempfile.TemporaryDirectory() as scratch:
        checks = compare_all(checkpoints, records, cases.CHECKPOINTS, Path(scratch))
        print("\nnegative controls")
        missed = run_controls(checkpoints, records, Path(scratch))
        differences = fixture_differences(records, Path(scratch) / "thin")
    failed = report("tiny checkpoints", records, checks, cases.CHECKPOINTS)
    for difference in differences[:20]:
        print(f"FAILED fixture: {difference}")
    for fault in missed:
        print(f"FAILED control: {fault} was not detected")
    return len(checks) - failed, failed + len(missed) + len(differences)


def run_full(oracle: Path, work: Path, *, limit_s: float) -> tuple[int, int]:
    """One checkpoint at full size; returns numbers of passed and failed checks."""
    checkpoints, records, names = work / "checkpoints", work / "records-full", (cases.FULL_CHECKPOINT,)
    make_checkpoint(cases.FULL_CHECKPOINT, checkpoints / cases.FULL_CHECKPOINT)
    run_oracle(oracle, checkpoints, records, names, limit_s=limit_s)
    with tempfile.TemporaryDirectory() as scratch:
        checks = compare_all(checkpoints, records, names, Path(scratch))
    failed = report("full size", records, checks, names)
    return len(checks) - failed, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--oracle", type=Path, required=True, help="Python of the environment with the official package"
    )
    parser.add_argument("--work", type=Path, default=Path("build/parity"))
    parser.add_argument("--full", action="store_true", help=f"also {cases.FULL_CHECKPOINT} at full size")
    parser.add_argument("--only-full", action="store_true", help="only the full size")
    parser.add_argument("--write-fixtures", action="store_true", help="update tests/fixtures/parity")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="time limit per size in seconds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    oracle, work, limit_s = arguments.oracle, arguments.work, arguments.limit_s
    oracle_s = limit_s / 2
    results: list[tuple[int, int]] = []
    if not arguments.only_full:
        with time_limit(limit_s):
            results.append(run_tiny(oracle, work, write_fixtures=arguments.write_fixtures, limit_s=oracle_s))
    if arguments.full or arguments.only_full:
        with time_limit(limit_s):
            results.append(run_full(oracle, work, limit_s=oracle_s))
    passed, failed = (sum(each) for each in zip(*results, strict=True))
    print(f"\nparity: {passed} passed, {failed} failed ({time.perf_counter() - started:.0f} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
