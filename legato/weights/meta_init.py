"""Build modules on the meta device without running parameter initialization.

On the meta device torch runs the init functions in Python, for which it imports its compiler: seconds of a cold start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Result = TypeVar("Result")


class _SkipInit(TorchFunctionMode):
    """Makes the functions of `torch.nn.init` return their tensor unchanged."""

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
def empty_modules() -> Iterator[None]:
    """Modules created in this context have uninitialized parameters on the meta device."""
    with torch.device("meta"), _SkipInit():
        yield
