"""A fake CUDA device: tensors report `cuda:0`, compute on the CPU, and raise where a real device would.

It detects without a GPU: operations that mix host and device tensors, unexpected synchronizations, and graphs that
replay incorrectly. A graph is a tape of the operations that reached the device, with the memory that they used. Replay
does not run Python again, host values keep their values of the capture, and outputs are overwritten before each replay,
as in a memory pool that graphs share. Performance and kernels are not modelled.

For tests only. The context manager `fake_cuda()` installs the device for this thread and for engines created in it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from legato.engine.engine import Engine
from tests.graph_tape import Tape

DEVICE = torch.device("cuda", 0)
SYNCHRONIZING_OPS = frozenset(
    ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "allclose", "_unique2", "unique")
)
"""Operations that read a value on the host, or whose output shape depends on values."""
TRANSFER_OPS = frozenset(("to", "_to_copy", "copy_", "lift_fresh", "_pin_memory"))
"""Operations that may copy a tensor between host and device."""


class DeviceMixError(AssertionError):
    """A host tensor and a device tensor were used in one operation."""


class CaptureFaultError(RuntimeError):
    """An operation that a graph cannot contain was called during capture."""


class DeviceTensor(torch.Tensor):
    """A tensor that reports to be on the device; its data is in `host`."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> DeviceTensor:
        with torch.inference_mode():  # without view and version tracking, which needs the real device
            made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
                cls,
                host.shape,
                strides=host.stride(),
                storage_offset=host.storage_offset(),
                dtype=host.dtype,
                device=DEVICE,
            )
        made.host = host
        return made

    def untyped_storage(self) -> Any:
        return self.host.untyped_storage()

    # These functions access the real device before any mode is called.
    def tolist(self) -> Any:
        return self.cpu().tolist()

    def item(self) -> Any:
        return self.cpu().item()

    def __bool__(self) -> bool:
        return bool(self.cpu())

    def __int__(self) -> int:
        return int(self.cpu())

    __index__ = __int__

    def __float__(self) -> float:
        return float(self.cpu())

    def copy_(self, source: Tensor, non_blocking: bool = False) -> Any:  # noqa: ARG002
        return _dispatch(torch.ops.aten.copy_.default, (self, source), {})

    def __invert__(self) -> Tensor:
        return self.bitwise_not()

    def __getitem__(self, index: Any) -> Any:
        return _dispatch(_NamedOp("index", operator.getitem), (self, index), {})

    def nonzero(self) -> Any:  # type: ignore[override]
        return _dispatch(torch.ops.aten.nonzero.default, (self,), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, DeviceTensor):
            value = value.to(DEVICE)
        _dispatch(_NamedOp("index_put_", operator.setitem), (self, index, value), {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _dispatch(func, args, kwargs or {})


@dataclass(frozen=True)
class _NamedOp:
    """A Python function as a named operation."""

    name: str
    function: Callable[..., Any]

    @property
    def overloadpacket(self) -> Callable[..., Any]:
        return type(self.name, (), {})

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Handles operations without a device tensor argument: creation on the device, and copies to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """Replaces `torch.tensor`, which accesses the real device before any mode is called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") is not None:
            device = torch.device(kwargs.pop("device"))
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


@dataclass
class _Device:
    """State of the fake device: active captures, and the synchronizations so far."""

    tapes: list[Tape] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)


_DEVICE = _Device()


def waits() -> list[str]:
    """Operations that synchronized the host with the device so far."""
    return _DEVICE.waits


def _dispatch(func: Any, args: Any, kwargs: Any) -> Any:
    flat, form = tree_flatten((args, kwargs))
    name = func.overloadpacket.__name__
    on_device = [each for each in flat if isinstance(each, DeviceTensor)]
    on_host = [each for each in flat if isinstance(each, Tensor) and not isinstance(each, DeviceTensor)]
    named = [each for each in flat if isinstance(each, torch.device)]
    if name == "_has_compatible_shallow_copy_type":
        return False  # modules that are moved or converted get new parameters
    if not on_device and not any(each.type == "cuda" for each in named):
        return func(*args, **kwargs)
    if name in TRANSFER_OPS:
        crosses = bool(on_device and on_host) or any((each.type == "cuda") != bool(on_device) for each in named)
    else:
        crosses = False
        # Zero-dimensional host tensors may be operands of device operations, but not indexes.
        mixed = [each for each in on_host if each.dim() or name.startswith(("index", "gather", "scatter", "embedding"))]
        if on_device and mixed:
            raise DeviceMixError(f"{func} got {tuple(mixed[0].shape)} {mixed[0].dtype} from the host")
    _note_synchronizations(name, flat, on_device, crosses=crosses)
    inner = [_inner(each) for each in flat]
    inner_args, inner_kwargs = tree_unflatten(inner, form)
    made = func(*inner_args, **inner_kwargs)
    if _DEVICE.tapes:
        _DEVICE.tapes[-1].add(func, inner_args, inner_kwargs, made)
    to_host = bool(named) and named[-1].type != "cuda"
    if to_host or (name == "copy_" and not isinstance(flat[0], DeviceTensor)):
        return made
    known = {id(each.host): each for each in on_device}
    return tree_map(lambda each: known.get(id(each), DeviceTensor(each)) if isinstance(each, Tensor) else each, made)


def _inner(each: Any) -> Any:
    if isinstance(each, DeviceTensor):
        return each.host
    return torch.device("cpu") if isinstance(each, torch.device) and each.type == "cuda" else each


def _note_synchronizations(name: str, flat: list[Any], on_device: list[DeviceTensor], *, crosses: bool) -> None:
    masks = name.startswith("index") and any(each.dtype in (torch.bool, torch.uint8) for each in on_device[1:])
    if name in SYNCHRONIZING_OPS or crosses or (masks and name not in ("index_fill_", "index_copy_", "index_select")):
        _DEVICE.waits.append(name)
        if _DEVICE.tapes:
            raise CaptureFaultError(
                f"operation not permitted while a graph is recorded: {name} of {len(flat)} arguments"
            )


# --- replacements for `torch.cuda` ------------------------------------------------------------------------------------


class _Graph:
    """Replaces `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.tape = Tape()

    def replay(self) -> None:
        assert self.tape.steps, "nothing was recorded"
        self.tape.play()


class _Stream:
    """Replaces `torch.cuda.Stream`; operations run immediately."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device

    def wait_stream(self, other: _Stream) -> None:
        assert isinstance(other, _Stream)

    def synchronize(self) -> None:
        _DEVICE.waits.append("synchronize")


@contextmanager
def _recorded(graph: _Graph, *rest: Any, **options: Any) -> Iterator[None]:
    """Replaces `torch.cuda.graph`, with the same arguments."""
    inspect.signature(_REAL_GRAPH.__init__).bind(None, graph, *rest, **options)
    _DEVICE.tapes.append(graph.tape)
    try:
        yield
    finally:
        _DEVICE.tapes.remove(graph.tape)
    graph.tape.invalidate_outputs()  # a real capture computes nothing


_REAL_GRAPH = torch.cuda.graph
_REAL_MAIN = Engine._main


def _main_on_fake_device(engine: Engine) -> None:
    with _Literals(), _Mode():  # type: ignore[no-untyped-call]
        _REAL_MAIN(engine)


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Context in which the fake device exists."""
    _DEVICE.waits.clear()
    cuda: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "get_device_name": lambda *_: "fake CUDA device",
        "CUDAGraph": _Graph,
        "graph": _recorded,
        "Stream": _Stream,
        "stream": lambda _: nullcontext(),
        "current_stream": _Stream,
        "graph_pool_handle": lambda: (0, 1),
        "synchronize": lambda *_: _DEVICE.waits.append("synchronize"),
    }
    patched_cuda = mock.patch.multiple(torch.cuda, **cuda)
    with patched_cuda, mock.patch.object(Engine, "_main", _main_on_fake_device), _Literals(), _Mode():  # type: ignore[no-untyped-call]
        yield


def on_device(module: nn.Module) -> None:
    """Move a module's weights to the device, in place."""
    with torch.inference_mode():
        module.to(DEVICE)
