"""Train talker and code predictor together. Resumable; CPU or CUDA; new speech is loaded during training.

The checkpoint `lm/lm.pt` has weights, averaged weights (which are exported), optimizer state and schedule progress. A
run completes the rest of the learning rate schedule within its CPU or wall-clock budget, whichever ends first.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import paths
import torch
from codec_tables import Tables
from lm import VoiceLM
from lm_data import PHASES, Batch, Example, collate, epoch_batches, load_examples
from safetensors.torch import load_file

CHECKPOINT = paths.CACHE / "lm" / "lm.pt"
AVERAGE_DECAY = 0.998
BOUNDARY_JITTER = 0.1
SAVE_SECONDS = 60.0
RELOAD_SECONDS = 600.0


@dataclass
class Clock:
    """Schedule progress, 0 to 1: goes from the initial value `reached` to 1 as this run's budget is used up."""

    reached: float
    cpu_seconds: float
    wall_seconds: float

    def __post_init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.monotonic()

    def progress(self) -> float:
        run = max(self.cpu() / self.cpu_seconds, (time.monotonic() - self._wall) / self.wall_seconds)
        return self.reached + (1 - self.reached) * min(1.0, run)

    def cpu(self) -> float:
        return time.process_time() - self._cpu


class Trainer:
    """Model, averaged model and optimizer."""

    def __init__(self, device: torch.device, peak_rate: float) -> None:
        self.device = device
        self.model = VoiceLM().to(device)
        self.model.init_from_tables(Tables.load(str(device)).codebooks)
        self.average = VoiceLM().to(device).eval()
        self.average.load_state_dict(self.model.state_dict())
        self.peak_rate = peak_rate
        decayed = [p for p in self.model.parameters() if p.dim() == 2]
        others = [p for p in self.model.parameters() if p.dim() != 2]
        groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, peak_rate, betas=(0.9, 0.98), fused=True)
        self.steps = 0
        self.reached = 0.0
        self.cpu_before = 0.0

    def step(self, batch: Batch, progress: float) -> list[float]:
        """Run one optimizer step and return the losses of the codebooks."""
        rate = self.peak_rate * min(1, (self.steps + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * progress)))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        with torch.autocast(self.device.type, torch.bfloat16):
            losses = self.model.losses(batch)
            total = self.model.weighted_loss(losses)
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.steps += 1
        if self.steps % 4 == 0:
            self._update_average(1 - AVERAGE_DECAY**4 if self.steps > 1_500 else 0.03)
        return [float(loss.detach()) for loss in losses]

    @torch.no_grad()
    def _update_average(self, share: float) -> None:
        for mean, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(new, share)

    @torch.no_grad()
    def held_out(self, examples: list[Example]) -> list[float]:
        """Losses of the averaged model on held-out sentences."""
        self.average.eval()
        with torch.autocast(self.device.type, torch.bfloat16):
            return [float(loss) for loss in self.average.losses(collate(examples).to(self.device))]

    def save(self, progress: float, cpu: float) -> None:
        state = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            "progress": progress,
            "cpu": self.cpu_before + cpu,
        }
        CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
        partial = CHECKPOINT.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, CHECKPOINT)

    @torch.no_grad()
    def load_voice(self, folder: Path) -> None:
        """Initialize with the weights of a voice folder."""
        stored = load_file(str(folder / "model.safetensors"), device=str(self.device))
        for name, tensor in self.model.named_tensors().items():
            tensor.copy_(stored[name])
        self.average.load_state_dict(self.model.state_dict())

    def resume(self) -> None:
        state = torch.load(CHECKPOINT, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.reached, self.cpu_before = state["steps"], state["progress"], state["cpu"]
        print(
            f"resumed at step {self.steps}, {self.reached:.2f} of the schedule, {self.cpu_before:.0f} CPU-s", flush=True
        )


def train(trainer: Trainer, clock: Clock, phases: list[int], frames_per_batch: int) -> None:
    """Train until the schedule is complete."""
    loaded_at, saved, frames = -math.inf, time.monotonic(), 0
    pool: list[Example] = []
    held_out: list[Example] = []
    recent: list[list[float]] = []
    while clock.progress() < 1:
        if time.monotonic() - loaded_at > RELOAD_SECONDS:
            pool, held_out = load_examples(phases)
            loaded_at = time.monotonic()
            hours = sum(len(example.codes) for example in pool) / 45_000 / len(phases)
            print(f"{len(pool)} examples, {hours:.2f} hours at {len(phases)} phases", flush=True)
        for chosen in epoch_batches(pool, frames_per_batch):
            recent.append(trainer.step(collate(chosen, BOUNDARY_JITTER).to(trainer.device), clock.progress()))
            frames += sum(len(example.codes) for example in chosen)
            if trainer.steps % 100 == 0:
                means = torch.tensor(recent).mean(0).tolist()
                recent.clear()
                print(_progress_line(trainer, clock, means, frames), flush=True)
            if time.monotonic() - saved > SAVE_SECONDS:
                trainer.save(clock.progress(), clock.cpu())
                print("  held out " + " ".join(f"{loss:.2f}" for loss in trainer.held_out(held_out)), flush=True)
                saved = time.monotonic()
            late = time.monotonic() - loaded_at > RELOAD_SECONDS
            if clock.progress() >= 1 or late:
                break
    trainer.save(1.0, clock.cpu())
    print("end: held out " + " ".join(f"{loss:.3f}" for loss in trainer.held_out(held_out)), flush=True)


def _progress_line(trainer: Trainer, clock: Clock, means: list[float], frames: int) -> str:
    cpu = clock.cpu()
    return (
        f"{trainer.steps} codebook 0 {means[0]:.3f}, 1 {means[1]:.3f}, rest {sum(means[2:]) / 6:.3f}; "
        f"{clock.progress():.3f} done, {trainer.cpu_before + cpu:.0f} CPU-s, {frames / cpu:.0f} frames a CPU-s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu-seconds", type=float, default=3600.0)
    parser.add_argument("--wall-seconds", type=float, default=math.inf)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--phases", type=int, default=PHASES)
    parser.add_argument("--peak-rate", type=float, default=1.7e-3)
    parser.add_argument("--frames-per-batch", "--frames-a-batch", type=int, default=1_000)
    parser.add_argument("--progress", type=float, help="set the schedule progress (0 to 1)")
    parser.add_argument("--from-voice", action="store_true", help="first run: start from the repository's voice")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seed = int(time.time())
    torch.manual_seed(seed)
    random.seed(seed)
    trainer = Trainer(torch.device(arguments.device), arguments.peak_rate)
    if CHECKPOINT.exists():
        trainer.resume()
    elif arguments.from_voice:
        trainer.load_voice(paths.VOICE_FOLDER)
    reached = trainer.reached if arguments.progress is None else arguments.progress
    clock = Clock(reached, arguments.cpu_seconds, arguments.wall_seconds)
    phases = [round(i * PHASES / arguments.phases) for i in range(arguments.phases)]
    train(trainer, clock, phases, arguments.frames_per_batch)


if __name__ == "__main__":
    main()
