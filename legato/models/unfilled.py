"""Modules without weights, to be filled from a file: no memory, and no first values that nobody would see.

Owns nothing. First values on a device without memory are no small matter: torch computes them by its own Python, for
which it imports its compiler, seconds of a cold start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Result = TypeVar("Result")


class _NoFirstValues(TorchFunctionMode):
    """Leaves a tensor as it is where `torch.nn.init` would fill it."""

    def __torch_function__(
        self,
        func: Callable[..., Result],
        types: Sequence[type],
        args: tuple[Tensor, ...] = (),
        kwargs: Mapping[str, Tensor] | None = None,
    ) -> Result | Tensor:
        given = kwargs or {}
        if getattr(func, "__module__", "") == torch.nn.init.__name__:
            return args[0] if args else given["tensor"]
        return func(*args, **given)


@contextmanager
def unfilled() -> Iterator[None]:
    """Modules made inside have parameters of the right shapes on the device `meta`."""
    with torch.device("meta"), _NoFirstValues():
        yield
