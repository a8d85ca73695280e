"""Train the duration predictor on the teacher's durations. Takes two CPU minutes; not resumable.

The loss is the Poisson negative log-likelihood (exp(o) - y o). L1 on log durations would estimate the median, which is
too short on average because the distribution is skewed.
"""

from __future__ import annotations

import argparse
import math
import random
import time

import paths
import torch
from alignment import QUARTER_SAMPLES, Aligned, align
from sizes import DURATION, LOOK_AHEAD_PHONES, SPEAKERS
from speech import stores
from torch import Tensor
from torch.nn import functional

from legato.models.durations import DurationNet
from legato.text.english.phones import INVENTORY

CHECKPOINT = paths.CACHE / "lm" / "durations.pt"
BATCH = 32
PEAK_RATE = 3e-3
DROPOUT = 0.15
MASKED = 0.04
OWN_PHONES_WEIGHT = 3
"""Weight of sentences that were synthesized from the phones of our front end (others: 1)."""


def examples(held_out: bool = False) -> list[tuple[int, Aligned]]:
    """(speaker row, aligned phones) of every sentence with known symbols."""
    found: list[tuple[int, Aligned]] = []
    for store in stores(held_out):
        for sentence in store.sentences():
            try:
                example = (SPEAKERS.index(sentence.speaker), align(sentence.phonemes, sentence.durations_25ms))
                found += [example] * (1 if store.name.endswith("-first") else OWN_PHONES_WEIGHT)
            except KeyError as unknown:
                print(f"skipped (unknown symbol {unknown}): {sentence.text}", flush=True)
    return found


def batch_of(net: DurationNet, chosen: list[tuple[int, Aligned]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Phones [B, behind + P + ahead], speakers [B], quarters [B, P] and mask [B, P]."""
    longest = max(len(aligned.ids) for _, aligned in chosen)
    phones = torch.zeros(len(chosen), net.look_behind + longest + net.look_ahead, dtype=torch.int64)
    quarters, mask = torch.ones(len(chosen), longest), torch.zeros(len(chosen), longest)
    for row, (_, aligned) in enumerate(chosen):
        count = len(aligned.ids)
        phones[row, net.look_behind : net.look_behind + count] = torch.tensor(aligned.ids)
        quarters[row, :count] = torch.tensor(aligned.samples) / QUARTER_SAMPLES
        mask[row, :count] = 1
    return phones, torch.tensor([speaker for speaker, _ in chosen]), quarters, mask


@torch.no_grad()
def errors(net: DurationNet, held: list[tuple[int, Aligned]]) -> tuple[float, float, float]:
    """Mean absolute errors in ms per phone and of sentence ends (first and last), and predicted over true total."""
    net.eval()
    phones, speakers, quarters, mask = batch_of(net, held)
    guessed = net(phones, speakers).exp() * mask
    quarters = quarters * mask
    net.train()
    error_ms = float((guessed - quarters).abs().sum() / mask.sum()) * 20
    drift_ms = float((guessed.sum(1) - quarters.sum(1)).abs().mean()) * 20
    return error_ms, float(guessed.sum() / quarters.sum()), drift_ms


def _summary(found: tuple[float, float, float]) -> str:
    return f"{found[0]:.1f} ms a phone, total x{found[1]:.3f}, drift {found[2]:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu-seconds", type=float, default=120.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    pool = examples()
    held = examples(held_out=True)
    net = DurationNet(phones=len(INVENTORY), speakers=len(SPEAKERS), sizes=DURATION, look_ahead=LOOK_AHEAD_PHONES)
    print(f"{sum(p.numel() for p in net.parameters())} parameters, {len(pool)} sentences", flush=True)
    for norm in net.norms:
        norm.register_forward_hook(lambda module, _, y: functional.dropout(y, DROPOUT, module.training))
    optimizer = torch.optim.AdamW(net.parameters(), PEAK_RATE, weight_decay=0.05)
    started, step = time.process_time(), 0
    while (spent := (time.process_time() - started) / arguments.cpu_seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min(1, (step + 1) / 50) * (0.02 + 0.49 * (1 + math.cos(math.pi * spent)))
        phones, speakers, quarters, mask = batch_of(net, random.sample(pool, BATCH))
        phones[torch.rand(phones.shape) < MASKED] = 0
        log_quarters = net(phones, speakers)
        loss = ((log_quarters.exp() - quarters * log_quarters) * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 200 == 0:
            print(f"{step} loss {float(loss.detach()):.4f} held out: {_summary(errors(net, held))}", flush=True)
    print(f"final: {_summary(errors(net, held))}", flush=True)
    CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), CHECKPOINT)


if __name__ == "__main__":
    main()
