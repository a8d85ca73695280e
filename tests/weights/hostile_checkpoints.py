"""Checkpoints with one hostile value, and a process that loads them with limits on memory and time.

`python -m tests.weights.hostile_checkpoints FOLDER SEED CASES COPY` prints one line for each case that neither loads
nor fails with a `CheckpointError` that names its file. CASES: number of random cases, 0 for all; COPY: a new folder.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from legato.errors import CheckpointError

Json = dict[str, object] | list[object]
CASE_S = 10
EXTRA_BYTES = 2 * 2**30
"""Address space beyond what the process has after its first load."""
NAMES = ("config.json", "generation_config.json", "tokenizer_config.json", "speech_tokenizer/config.json")
BINARY = ("model.safetensors", "speech_tokenizer/model.safetensors", "vocab.json", "merges.txt", *NAMES)
DEEP = 100_000
HOSTILE: tuple[str, ...] = (
    *(str(2**63), str(2**31), str(2**31 - 1), str(2**20), "65537", "7", "1", "0", "-1", "1e400", "1e-300", "0.5"),
    *("9" * 400, "9" * 5000, "NaN", "Infinity", "true", "null", '""', '"x"', '"\\ud800"', '"' + "y" * 2000 + '"'),
    *("[]", "[[]]", "[0]", "[1e9]", "[" + ",".join(["2"] * 3000) + "]", "{}", '{"a": 5}', '{"": {}}'),
    *("[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP),
)
"""JSON values that replace one value of a file."""
MARK = "\u0001hostile\u0001"


@dataclass(frozen=True, slots=True)
class Case:
    """One edit of one file of a checkpoint: its new content, and where it was edited."""

    file: str
    where: str
    content: bytes


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all values in a JSON document, at most three entries of each long object."""
    entries: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    for key, inner in entries if len(entries) < 60 else entries[:3]:
        yield (*path, key)
        yield from places(inner, (*path, key))


def json_case(folder: Path, file: str, path: tuple[str | int, ...], text: str) -> Case:
    """The file with the value at `path` replaced by the JSON `text`."""
    document = json.loads((folder / file).read_text(encoding="utf-8"))
    target = document
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = MARK
    content = json.dumps(document).replace(json.dumps(MARK), text, 1)
    return Case(file, f"{'.'.join(map(str, path))} = {text[:30]}", content.encode())


def json_cases(folder: Path) -> Iterator[Callable[[], Case]]:
    """Every value of every JSON file, replaced by every hostile value."""
    for file in filter(lambda name: (folder / name).is_file(), NAMES):
        for path in places(json.loads((folder / file).read_text(encoding="utf-8"))):
            for text in HOSTILE:
                yield partial(json_case, folder, file, path, text)


def byte_case(folder: Path, file: str, rng: random.Random) -> Case:
    """The file truncated, or with some bytes changed near its start, where headers are."""
    content = bytearray((folder / file).read_bytes())
    if rng.random() < 0.3:
        kept = rng.choice((0, 1, 7, 8, 9, rng.randrange(len(content))))
        return Case(file, f"truncated to {kept}", bytes(content[:kept]))
    for _ in range(rng.choice((1, 3, 20))):
        at = rng.randrange(min(len(content), rng.choice((8, 200, 20_000))))
        content[at] = rng.choice((0, 0x22, 0xFF, 0x39, 0x7D))
    return Case(file, "bytes changed", bytes(content))


def try_case(folder: Path, copy: Path, case: Case) -> str | None:
    """Load the checkpoint with the edit. None if that works or fails as it should, else what went wrong."""
    from legato.text.tokenizer import FILES, BpeTokenizer
    from legato.weights.loading import load_model

    edited = copy / case.file
    edited.unlink()
    edited.write_bytes(case.content)
    signal.alarm(CASE_S)
    try:
        load_model(copy)
        if (folder / FILES[0]).is_file():
            BpeTokenizer.load(copy)
    except CheckpointError as error:
        message = str(error)
        if Path(case.file).name not in message and str(copy) not in message:
            return f"no file in: {message[:300]}"
        if len(message) > 5000 and "\n" not in message:
            return f"a message of {len(message)} characters"
    except BaseException as error:  # boundary: the alarm, MemoryError and panics are results here
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.alarm(0)
        edited.unlink()
        edited.symlink_to(folder / case.file)
    return None


def link_copy(folder: Path, copy: Path) -> None:
    """A folder with links to the files of a checkpoint."""
    for path in folder.rglob("*.*"):
        if path.is_file():
            (copy / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            (copy / path.relative_to(folder)).symlink_to(path)


def raise_timeout(*_signal: object) -> None:
    raise TimeoutError(f"not loaded in {CASE_S} s")


def main() -> None:
    from legato.weights.loading import load_model

    folder, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    copy = Path(sys.argv[4])
    rng = random.Random(seed)
    link_copy(folder, copy)
    load_model(copy)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_BYTES, used + EXTRA_BYTES))
    signal.signal(signal.SIGALRM, raise_timeout)
    every = list(json_cases(folder))
    chosen = every if count == 0 else rng.sample(every, min(count, len(every)))
    files = [file for file in BINARY if (folder / file).is_file()]
    damaged = (byte_case(folder, rng.choice(files), rng) for _ in range(len(chosen) // 4))
    tried = 0
    for case in chain((make() for make in chosen), damaged):
        fault = try_case(folder, copy, case)
        tried += 1
        if fault is not None:
            print(f"{case.file}: {case.where}: {fault}", flush=True)
    print(f"tried {tried} of {len(every)}", file=sys.stderr)
    shutil.rmtree(copy)


if __name__ == "__main__":
    main()
