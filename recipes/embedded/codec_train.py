"""Train the codec decoder: first with spectral losses, then with discriminators. Resumable; CPU or CUDA.

The checkpoint `codec/decoder.pt` has weights, averaged weights, optimizer states and the seconds spent per phase. A
phase ends when its budget is used up; run it again with a larger budget, or with more speech, to continue. The learning
rate is a function of the used share of the budget.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import codec_net
import numpy as np
import paths
import torch
from codec_data import CropSampler
from codec_losses import (
    Discriminators,
    discriminator_loss,
    feature_loss,
    generator_loss,
    spectral_loss,
)
from codec_net import CodecDecoder, CodecSizes
from codec_start import front_parameters, init_from_tables, read_weights
from codec_tables import Tables
from speech import FRAME_SAMPLES
from torch import Tensor

from legato.config.codec_checkpoint import CODEC_FOLDER

CHECKPOINT = paths.CODEC / "decoder.pt"
CROPS_FRAMES = {"spectral": (10, 12, 16, 24, 48, 96), "adversarial": (8, 12, 24)}
"""Crop lengths; all crops of a batch have the same length. Long crops span sentence ends and the attention window."""
WARM_UP_FRAMES = 2
"""Frames at the start of a crop that are excluded from the loss, because their left context is missing."""
DISCRIMINATOR_FRAMES = 5
TERM_WEIGHTS = {"generator": 0.7, "features": 1.0, "spectral": 1.0}
"""Relative norms of the gradients of the loss terms with respect to the wave."""
PEAK_RATE = {"spectral": 1e-3, "adversarial": 3e-4}
FRONT_SHARE = 0.1
"""Learning rate of the closed-form front relative to the randomly initialized layers."""
AVERAGE_DECAY = 0.998
SAVE_EVERY_S = 60.0
SAMPLE_CROPS, SAMPLE_CROP_FRAMES = 60, 100
"""Crops from which the closed form takes its typical codes."""
_CHECKPOINT_KEYS = {
    "net": "net",
    "average": "average",
    "discriminators": "judges",
    "optimizer": "optimiser",
    "discriminator_optimizer": "judges_optimiser",
}
"""Attribute of `Training` -> key in the checkpoint."""


class Training:
    """Training state: the contents of a checkpoint."""

    def __init__(self, device: str) -> None:
        self.device = device
        sizes = CodecSizes()
        codebooks = Tables.load().codebooks
        self.net = CodecDecoder(sizes, codebooks / codebooks[0].std()).to(device)
        self.average = CodecDecoder(sizes).to(device)
        self.average.load_state_dict(self.net.state_dict())
        self.discriminators = Discriminators().to(device)
        front = front_parameters(self.net)
        known = {id(parameter) for parameter in front}
        groups = [
            {"params": front, "share": FRONT_SHARE},
            {"params": [p for p in self.net.parameters() if id(p) not in known], "share": 1.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, 1e-3, betas=(0.8, 0.95), weight_decay=0.01, fused=True)
        self.discriminator_optimizer = torch.optim.AdamW(
            self.discriminators.parameters(), 3e-4, betas=(0.8, 0.95), fused=True
        )
        self.steps = {"spectral": 0, "adversarial": 0}
        self.spent_s = {"spectral": 0.0, "adversarial": 0.0}
        self.norms: dict[str, float] = {}

    def begin(self, codes: Tensor) -> None:
        """Initialize with the closed-form front. `codes` [T, 8]: typical codes."""
        init_from_tables(self.net, Tables.load(), codes)
        self.average.load_state_dict(self.net.state_dict())

    def load_voice(self, folder: Path) -> None:
        """Initialize with the weights of a voice folder."""
        self.net.load_state_dict(read_weights(folder / CODEC_FOLDER))
        self.average.load_state_dict(self.net.state_dict())

    def save(self, path: Path) -> None:
        state = {key: getattr(self, name).state_dict() for name, key in _CHECKPOINT_KEYS.items()}
        partial = path.with_suffix(".partial")
        torch.save({**state, "steps": self.steps, "spent_s": self.spent_s, "norms": self.norms}, partial)
        partial.rename(path)

    def load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device)
        trained = ["net", "average", "optimizer"]
        if state["steps"]["adversarial"]:
            trained += ["discriminators", "discriminator_optimizer"]
        for name in trained:
            getattr(self, name).load_state_dict(state[_CHECKPOINT_KEYS[name]])
        self.steps, self.spent_s, self.norms = state["steps"], state["spent_s"], state["norms"]

    def skip_last_units(self, skip: bool) -> None:
        """Skip the residual units at 24 kHz, which take half of the time. On a CPU they are left at the identity."""
        for net in (self.net, self.average):
            net.decoder[len(net.sizes.upsample_rates)].skip_units = skip

    @torch.no_grad()
    def update_average(self, phase: str) -> None:
        """Update the exponential moving average of the weights."""
        decay = min(AVERAGE_DECAY, (1 + self.steps[phase]) / (10 + self.steps[phase]))
        torch._foreach_lerp_(list(self.average.parameters()), list(self.net.parameters()), 1 - decay)

    def decode(self, codes: Tensor) -> Tensor:
        with torch.autocast(self.device.split(":")[0], torch.bfloat16):
            return self.net(codes)

    def spectral_step(self, codes: Tensor, wanted: Tensor, rate: float) -> dict[str, float]:
        made = self.decode(codes)[:, WARM_UP_FRAMES * FRAME_SAMPLES :]
        loss, mel = spectral_loss(made, wanted)
        self._update(lambda: loss.backward(), rate)
        return {"loss": float(loss.detach()), "mel": float(mel)}

    def adversarial_step(self, codes: Tensor, wanted: Tensor, rate: float) -> dict[str, float]:
        """One step of the discriminators and one of the decoder.

        The gradients of the loss terms are scaled to fixed relative norms. The discriminators get only a part of the
        crop, because they are slower than the decoder.
        """
        made = self.decode(codes)[:, WARM_UP_FRAMES * FRAME_SAMPLES :]
        wave = made.detach().requires_grad_(True)
        part = self._discriminator_crop(wave.shape[1])
        with torch.autocast(self.device.split(":")[0], torch.bfloat16):
            of_real = self.discriminators(wanted[:, part])
            critic_loss = discriminator_loss(of_real, self.discriminators(made.detach()[:, part]))
        self.discriminator_optimizer.zero_grad()
        critic_loss.backward()
        for group in self.discriminator_optimizer.param_groups:
            group["lr"] = rate
        self.discriminator_optimizer.step()

        with torch.autocast(self.device.split(":")[0], torch.bfloat16):
            of_made = self.discriminators(wave[:, part])
            terms = {"generator": generator_loss(of_made), "features": feature_loss(of_real, of_made)}
        terms["spectral"], mel = spectral_loss(wave, wanted)
        towards = self._balanced_gradient(terms, wave)
        self._update(lambda: made.backward(towards), rate)
        values = {name: float(term.detach()) for name, term in terms.items()}
        return {"judged": float(critic_loss.detach()), "mel": float(mel), **values}

    def _discriminator_crop(self, samples: int) -> slice:
        length = min(samples, DISCRIMINATOR_FRAMES * FRAME_SAMPLES)
        start = int(torch.randint(samples - length + 1, ()))
        return slice(start, start + length)

    def _balanced_gradient(self, terms: dict[str, Tensor], wave: Tensor) -> Tensor:
        total = torch.zeros_like(wave)
        for name, term in terms.items():
            (gradient,) = torch.autograd.grad(term, wave, retain_graph=name == "generator")
            norm = float(gradient.norm())
            self.norms[name] = 0.99 * self.norms.get(name, norm) + 0.01 * norm
            total += gradient * (TERM_WEIGHTS[name] / (self.norms[name] + 1e-12))
        return total

    def _update(self, backward: Callable[[], None], rate: float) -> None:
        self.optimizer.zero_grad()
        backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.optimizer.step()


def learning_rate(peak: float, steps: int, share: float) -> float:
    """Linear warm-up, then a half cosine over the budget down to 5 %."""
    return peak * min(1.0, (steps + 1) / 100) * (0.05 + 0.475 * (1 + math.cos(math.pi * min(share, 1.0))))


def budget_clock(wall: bool) -> float:
    """Clock of the budget: wall-clock seconds if `wall`, else CPU seconds."""
    return time.monotonic() if wall else time.process_time()


def batches(data: CropSampler, phase: str, frames_per_batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        frames = int(data.generator.choice(CROPS_FRAMES[phase]))
        yield data.sample_batch(max(1, frames_per_batch // frames), frames)


@dataclass(frozen=True)
class Plan:
    """Options of one run."""

    phase: str
    budget_s: float
    """Total for the phase, including earlier runs."""
    peak_rate: float
    frames_per_batch: int
    device: str
    wall: bool
    last_units: bool
    from_voice: bool


def train(plan: Plan) -> None:
    phase, training = plan.phase, Training(plan.device)
    if CHECKPOINT.exists():
        training.load(CHECKPOINT)
    elif plan.from_voice:
        training.load_voice(paths.VOICE_FOLDER)
    data = CropSampler(np.random.default_rng(sum(training.steps.values())))
    data.reload()
    if not (CHECKPOINT.exists() or plan.from_voice):
        training.begin(data.sample_batch(SAMPLE_CROPS, SAMPLE_CROP_FRAMES)[0].flatten(0, 1))
    training.skip_last_units(not plan.last_units)
    before, started, saved = training.spent_s[phase], budget_clock(plan.wall), time.monotonic()
    print(f"{phase}: {data.hours():.2f} h of speech, {before:.0f} of {plan.budget_s:.0f} s spent", flush=True)
    step = training.spectral_step if phase == "spectral" else training.adversarial_step
    sums: dict[str, float] = {}
    summed = 0
    for codes, samples in batches(data, phase, plan.frames_per_batch):
        share = training.spent_s[phase] / plan.budget_s
        if share >= 1:
            break
        wanted = samples[:, WARM_UP_FRAMES * FRAME_SAMPLES :].to(plan.device)
        rate = learning_rate(plan.peak_rate, training.steps[phase], share)
        for name, value in step(codes.to(plan.device), wanted, rate).items():
            sums[name] = sums.get(name, 0.0) + value
        training.steps[phase] += 1
        summed += 1
        training.update_average(phase)
        training.spent_s[phase] = before + budget_clock(plan.wall) - started
        if training.steps[phase] % 50 == 0:
            means = " ".join(f"{name} {value / summed:.3f}" for name, value in sums.items())
            print(f"{phase} {training.steps[phase]} {training.spent_s[phase]:.0f} s: {means}", flush=True)
            sums, summed = {}, 0
        if time.monotonic() - saved > SAVE_EVERY_S:
            saved = time.monotonic()
            training.save(CHECKPOINT)
            data.reload()
    training.save(CHECKPOINT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("phase", choices=("spectral", "adversarial"))
    parser.add_argument("--budget-s", type=float, required=True, help="CPU seconds (wall-clock with --wall or CUDA)")
    parser.add_argument("--wall", action="store_true", help="count wall-clock seconds also on a CPU")
    parser.add_argument("--peak-rate", type=float, help="peak learning rate")
    parser.add_argument("--frames-per-batch", type=int, default=120)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--last-units", action="store_true", help="also train the residual units at 24 kHz")
    parser.add_argument("--from-voice", action="store_true", help="first run: start from the repository's voice")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch._dynamo.config.recompile_limit = 64  # one graph per width, with and without gradients
    codec_net.snake_beta = torch.compile(codec_net.snake_beta, dynamic=True)
    plan = Plan(
        phase=arguments.phase,
        budget_s=arguments.budget_s,
        peak_rate=arguments.peak_rate or PEAK_RATE[arguments.phase],
        frames_per_batch=arguments.frames_per_batch,
        device=arguments.device,
        wall=arguments.wall or arguments.device != "cpu",
        last_units=arguments.last_units,
        from_voice=arguments.from_voice,
    )
    train(plan)


if __name__ == "__main__":
    main()
