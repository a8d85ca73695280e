"""Graphs of the fake CUDA device: recorded operations, replayed on the memory that they used.

Python is not run again, so host values stay as they were. Whatever was computed is overwritten before each replay, as
memory that graphs share would be. For `tests/fake_cuda.py` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten


@dataclass
class Tape:
    """The operations in order, and the memory of their results."""

    steps: list[tuple[Callable[..., Any], Any, Any, list[Tensor]]] = field(default_factory=list)
    memory: list[Tensor] = field(default_factory=list)

    def add(self, func: Callable[..., Any], args: Any, kwargs: Any, made: Any) -> None:
        fresh = _fresh(made, {_place(each) for each in _tensors((args, kwargs))})
        self.steps.append((func, args, kwargs, fresh))
        self.memory += [_whole(each) for each in fresh]

    def invalidate_outputs(self) -> None:
        """Overwrite the memory, as other graphs in the pool would."""
        for whole in self.memory:
            whole.fill_(float("nan") if whole.is_floating_point() else 1)

    def play(self) -> None:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            self.invalidate_outputs()
            for func, args, kwargs, old in self.steps:
                given = {_place(each) for each in _tensors((args, kwargs))} if old else set()
                again = func(*args, **kwargs)
                for before, now in zip(old, _fresh(again, given) if old else (), strict=True):
                    if before.is_contiguous() and now.is_contiguous():
                        before.copy_(now)
                    else:
                        _whole(before).copy_(_whole(now))


def _tensors(tree: Any) -> list[Tensor]:
    return [each for each in tree_flatten(tree)[0] if isinstance(each, Tensor)]


def _fresh(made: Any, given: set[int]) -> list[Tensor]:
    """Results that the operation allocated."""
    return [each for each in _tensors(made) if _place(each) not in given]


def _whole(tensor: Tensor) -> Tensor:
    """The whole storage of `tensor` as one dimension."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
