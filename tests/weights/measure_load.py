"""Measure load time and peak private memory of a checkpoint: `python -m tests.weights.measure_load FOLDER`.

Prints seconds, the peak of private (anonymous) memory above what the process had before, and the bytes of the loaded
weights. Clean pages of mapped files are not private: the system can drop them. Linux only. `--copy-first` is the
negative control: a loader that copies the files into memory before it converts them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from safetensors.torch import load_file

from legato.weights.loading import load_model
from legato.weights.progress import Progress
from legato.weights.random_checkpoint import write_checkpoint


def private_bytes() -> int:
    """Anonymous memory of this process in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--warm", type=Path, help="a small checkpoint to load before, so that only weights are counted")
    parser.add_argument("--like", default="", help="write a random-weight checkpoint of this kind into FOLDER first")
    parser.add_argument("--talker-dtype", default="float32")
    parser.add_argument("--codec-dtype", default="float32")
    parser.add_argument("--copy-first", action="store_true")
    arguments = parser.parse_args()
    if arguments.like:
        write_checkpoint(arguments.like, arguments.folder)
    if arguments.warm is not None:
        load_model(arguments.warm)
    before = peak = private_bytes()

    steps: set[tuple[int, int]] = set()

    def look(progress: Progress) -> None:
        """Sample about forty times per file: reading /proc is slow."""
        nonlocal peak
        step = (progress.total, 40 * progress.done // progress.total)
        if step not in steps:
            steps.add(step)
            peak = max(peak, private_bytes())

    started = time.perf_counter()
    held = []
    if arguments.copy_first:
        files = sorted(arguments.folder.rglob("*.safetensors"))
        held = [{name: tensor.clone() for name, tensor in load_file(str(file)).items()} for file in files]
    model = load_model(
        arguments.folder, talker_dtype=arguments.talker_dtype, codec_dtype=arguments.codec_dtype, progress=look
    )
    seconds = time.perf_counter() - started
    parts = (model.talker, model.code_predictor, model.decoder, model.encoder, model.speaker_encoder, model.durations)
    weights = sum(p.numel() * p.element_size() for part in parts if part is not None for p in part.parameters())
    print(f"seconds {seconds:.2f}, private bytes {peak - before}, weights {weights}")
    held.clear()


if __name__ == "__main__":
    main()
