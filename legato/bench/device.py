"""What a measurement asks of the device: to be waited for, and how much memory was in use. Owns nothing.

Work on CUDA is only queued when a call returns, so a host clock that is read then says how long queueing took. Every
part that is timed is followed by `settle`. Knows no figure.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable

import torch

from legato.models.load import LoadedModel


def settle_of(model: LoadedModel) -> Callable[[], None]:
    """Waits for the device, so that each part's seconds are its own. On a CPU there is nothing to wait for."""
    weight = model.talker.codec_head.weight
    if not weight.is_cuda:
        return lambda: None
    device = weight.device
    return lambda: torch.cuda.synchronize(device)


def forget_peak(model: LoadedModel) -> None:
    """Start anew where a peak can be forgotten: on CUDA. A process's own peak cannot."""
    if model.talker.codec_head.weight.is_cuda:
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(model: LoadedModel) -> int:
    """The most memory so far: of the device on CUDA, else of this process, weights included."""
    if model.talker.codec_head.weight.is_cuda:
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
