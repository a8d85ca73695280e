"""Trains talker and code predictor together. Resumable; one script for CPU and CUDA; takes new speech in as it comes.

Owns `lm/lm.pt`: weights, their running average (what is exported), the optimiser and how far along the schedule is. A
run goes over what is left of the schedule in the CPU- or wall-seconds that it is given, whichever end first.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import places
import torch
from codec_tables import Tables
from lm import VoiceLM
from lm_data import PHASES, Batch, Example, collate, epochs, load_examples
from safetensors.torch import load_file

CHECKPOINT = places.CACHE / "lm" / "lm.pt"
AVERAGE_DECAY = 0.998
BOUNDARY_JITTER = 0.1
SAVE_SECONDS = 60.0
LOOK_FOR_SPEECH_SECONDS = 600.0


@dataclass
class Clock:
    """How far along the schedule the training is, 0 to 1, from what was reached before and this run's budgets."""

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
    """The model, its running average and its optimiser."""

    def __init__(self, device: torch.device, peak_rate: float) -> None:
        self.device = device
        self.model = VoiceLM().to(device)
        self.model.start_from_tables(Tables.load(str(device)).books)
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
        """One optimiser step; the losses of the codebooks."""
        rate = self.peak_rate * min(1, (self.steps + 1) / 100) * (0.02 + 0.49 * (1 + math.cos(math.pi * progress)))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        with torch.autocast(self.device.type, torch.bfloat16):
            losses = self.model.losses(batch)
            total = self.model.weighed(losses)
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.steps += 1
        if self.steps % 4 == 0:
            self._follow(1 - AVERAGE_DECAY**4 if self.steps > 1_500 else 0.03)
        return [float(loss.detach()) for loss in losses]

    @torch.no_grad()
    def _follow(self, share: float) -> None:
        for mean, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(new, share)

    @torch.no_grad()
    def held_out(self, examples: list[Example]) -> list[float]:
        """Losses of the running average on sentences it was not trained on."""
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
    def begin_from_voice(self, folder: Path) -> None:
        """With the weights that a voice's folder holds."""
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


def train(trainer: Trainer, clock: Clock, phases: list[int], frames_a_batch: int) -> None:
    """Epochs until the clock says 1."""
    looked, saved, frames = -math.inf, time.monotonic(), 0
    pool: list[Example] = []
    held: list[Example] = []
    recent: list[list[float]] = []
    while clock.progress() < 1:
        if time.monotonic() - looked > LOOK_FOR_SPEECH_SECONDS:
            pool, held = load_examples(phases)
            looked = time.monotonic()
            hours = sum(len(example.codes) for example in pool) / 45_000 / len(phases)
            print(f"{len(pool)} examples, {hours:.2f} hours at {len(phases)} phases", flush=True)
        for chosen in epochs(pool, frames_a_batch):
            recent.append(trainer.step(collate(chosen, BOUNDARY_JITTER).to(trainer.device), clock.progress()))
            frames += sum(len(example.codes) for example in chosen)
            if trainer.steps % 100 == 0:
                means = torch.tensor(recent).mean(0).tolist()
                recent.clear()
                print(_line(trainer, clock, means, frames), flush=True)
            if time.monotonic() - saved > SAVE_SECONDS:
                trainer.save(clock.progress(), clock.cpu())
                print("  held out " + " ".join(f"{loss:.2f}" for loss in trainer.held_out(held)), flush=True)
                saved = time.monotonic()
            late = time.monotonic() - looked > LOOK_FOR_SPEECH_SECONDS
            if clock.progress() >= 1 or late:
                break
    trainer.save(1.0, clock.cpu())
    print("end: held out " + " ".join(f"{loss:.3f}" for loss in trainer.held_out(held)), flush=True)


def _line(trainer: Trainer, clock: Clock, means: list[float], frames: int) -> str:
    cpu = clock.cpu()
    return (
        f"{trainer.steps} book 0 {means[0]:.3f}, 1 {means[1]:.3f}, rest {sum(means[2:]) / 6:.3f}; "
        f"{clock.progress():.3f} done, {trainer.cpu_before + cpu:.0f} CPU-s, {frames / cpu:.0f} frames a CPU-s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu-seconds", type=float, default=3600.0)
    parser.add_argument("--wall-seconds", type=float, default=math.inf)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--phases", type=int, default=PHASES)
    parser.add_argument("--peak-rate", type=float, default=1.7e-3)
    parser.add_argument("--frames-a-batch", type=int, default=1_000)
    parser.add_argument("--progress", type=float, help="set the schedule back or on to this point (0 to 1)")
    parser.add_argument("--from-voice", action="store_true", help="first call: go on from the repository's voice")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seed = int(time.time())
    torch.manual_seed(seed)
    random.seed(seed)
    trainer = Trainer(torch.device(arguments.device), arguments.peak_rate)
    if CHECKPOINT.exists():
        trainer.resume()
    elif arguments.from_voice:
        trainer.begin_from_voice(places.VOICE_FOLDER)
    reached = trainer.reached if arguments.progress is None else arguments.progress
    clock = Clock(reached, arguments.cpu_seconds, arguments.wall_seconds)
    phases = [round(i * PHASES / arguments.phases) for i in range(arguments.phases)]
    train(trainer, clock, phases, arguments.frames_a_batch)


if __name__ == "__main__":
    main()
