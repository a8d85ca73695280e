"""Old names of keyword arguments: accepted with a `DeprecationWarning` that names the new one. Holds no state."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TypeVar, cast

from legato.errors import InputError

_Function = TypeVar("_Function", bound=Callable[..., object])


def accept_old_names(**renamed: str) -> Callable[[_Function], _Function]:
    """Let a function accept each old name in `renamed` (old="new") as a keyword argument.

    Type checkers see only the new names. Passing both the old and the new name is an `InputError`.
    """

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def accepting(*args: object, **kwargs: object) -> object:
            for old, new in renamed.items():
                if old not in kwargs:
                    continue
                if new in kwargs:
                    raise InputError(f"{old} is the old name of {new}: pass only {new}", field=new)
                warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return cast(_Function, accepting)

    return decorate
