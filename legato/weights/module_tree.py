"""Copy a module tree with some submodules replaced, or without some weights.

Copies share the remaining weights with the original tree, which is left unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)
Replacement = Callable[[str, nn.Module], nn.Module | None]
"""(name of a child, the child after its own children were replaced) -> the replacement, or None to keep it."""


def replace_modules(module: M, replacement: Replacement) -> M:
    """A tree like `module` in which `replacement` was applied to every submodule, innermost first.

    Modules with nothing replaced below them are shared with the original; the others are shallow copies that hold the
    same parameters and buffers. Nothing is assigned to `module` or to a module below it.
    """
    children = {name: child for name, child in module._modules.items() if child is not None}
    replaced = {name: _replaced(name, child, replacement) for name, child in children.items()}
    if all(replaced[name] is child for name, child in children.items()):
        return module
    shell = shallow_copy(module)
    shell._modules.update(replaced)
    return shell


def _replaced(name: str, child: nn.Module, replacement: Replacement) -> nn.Module:
    rebuilt = replace_modules(child, replacement)
    return replacement(name, rebuilt) or rebuilt


def without_replaced_weights(module: M, executed: nn.Module) -> M:
    """A copy of `module` that holds only the weights that it shares with `executed`; the others become meta tensors.

    Shapes and dtypes stay readable. Use of a released weight fails, because a meta tensor has no data.
    """
    shared = {tensor.untyped_storage().data_ptr() for tensor in (*executed.parameters(), *executed.buffers())}
    return _without_weights(module, shared)


def _without_weights(module: M, shared: set[int]) -> M:
    shell = shallow_copy(module)
    for name, child in module._modules.items():
        if child is not None:
            shell._modules[name] = _without_weights(child, shared)
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter.untyped_storage().data_ptr() not in shared:
            shell._parameters[name] = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
    return shell


def shallow_copy(module: M) -> M:
    """A module with the same parameters, buffers and children, whose registries are its own."""
    shell = copy.copy(module)
    for registry in ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"):
        shell.__dict__[registry] = copy.copy(module.__dict__[registry])
    return shell
