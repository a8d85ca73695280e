"""A CUDA device in name alone: tensors that say `cuda:0`, compute on the CPU, and refuse what a device would refuse.

What it shows without a GPU: a tensor of the host that meets one of the device, a wait for the device where there must
be none, and graphs that do not replay what they should. A graph here is a tape of the operations that reached the
device, with the memory they used: Python is not run again, host values stay as they were, and whatever the graph
computed is overwritten before each replay, as memory that graphs share would be. Speed and kernels it cannot show.

For tests alone. `fake_cuda()` makes the device for a `with` block, in this thread and in engines made there.
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
WAITS = frozenset(
    ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "allclose", "_unique2", "unique")
)
"""Operations whose result the host reads, or whose shape depends on values."""
MOVES = frozenset(("to", "_to_copy", "copy_", "lift_fresh", "_pin_memory"))
"""Operations that may take a tensor from the host to the device or back."""


class DeviceMixError(AssertionError):
    """A tensor of the host met one of the device."""


class CaptureFaultError(RuntimeError):
    """What a graph cannot hold was asked for while it was recorded."""


class DeviceTensor(torch.Tensor):
    """A tensor that says it is on the device; its numbers are in `host`."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> DeviceTensor:
        with torch.inference_mode():  # no history of views and writes, which would need the real device
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

    # These ask for the real device before anybody is told.
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
        return _dispatch(_Python("index", operator.getitem), (self, index), {})

    def nonzero(self) -> Any:  # type: ignore[override]
        return _dispatch(torch.ops.aten.nonzero.default, (self,), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, Tensor) and not isinstance(value, DeviceTensor):
            value = value.to(DEVICE)
        _dispatch(_Python("index_put_", operator.setitem), (self, index, value), {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _dispatch(func, args, kwargs or {})


@dataclass(frozen=True)
class _Python:
    """A function of Python as an operation with a name."""

    name: str
    function: Callable[..., Any]

    @property
    def overloadpacket(self) -> Callable[..., Any]:
        return type(self.name, (), {})

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees what no device tensor takes part in: tensors made on the device, and moves to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """`torch.tensor(..., device="cuda")` asks for the real device before any mode is told: made here, moved after."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") is not None:
            device = torch.device(kwargs.pop("device"))
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


@dataclass
class _Device:
    """What goes on: tapes being recorded, and the waits so far."""

    tapes: list[Tape] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)


_DEVICE = _Device()


def waits() -> list[str]:
    """Each operation for which the host had to wait since the device was made."""
    return _DEVICE.waits


def _dispatch(func: Any, args: Any, kwargs: Any) -> Any:
    flat, form = tree_flatten((args, kwargs))
    name = func.overloadpacket.__name__
    on_device = [each for each in flat if isinstance(each, DeviceTensor)]
    on_host = [each for each in flat if isinstance(each, Tensor) and not isinstance(each, DeviceTensor)]
    named = [each for each in flat if isinstance(each, torch.device)]
    if name == "_has_compatible_shallow_copy_type":
        return False  # a module that is moved or converted gets new parameters
    if not on_device and not any(each.type == "cuda" for each in named):
        return func(*args, **kwargs)
    if name in MOVES:
        crosses = bool(on_device and on_host) or any((each.type == "cuda") != bool(on_device) for each in named)
    else:
        crosses = False
        # A number in a tensor of the host may meet the device in arithmetic, but never as an index.
        mixed = [each for each in on_host if each.dim() or name.startswith(("index", "gather", "scatter", "embedding"))]
        if on_device and mixed:
            raise DeviceMixError(f"{func} got {tuple(mixed[0].shape)} {mixed[0].dtype} from the host")
    _note_waits(name, flat, on_device, crosses=crosses)
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


def _note_waits(name: str, flat: list[Any], on_device: list[DeviceTensor], *, crosses: bool) -> None:
    masks = name.startswith("index") and any(each.dtype in (torch.bool, torch.uint8) for each in on_device[1:])
    if name in WAITS or crosses or (masks and name not in ("index_fill_", "index_copy_", "index_select")):
        _DEVICE.waits.append(name)
        if _DEVICE.tapes:
            raise CaptureFaultError(
                f"operation not permitted while a graph is recorded: {name} of {len(flat)} arguments"
            )


# --- what `torch.cuda` offers -----------------------------------------------------------------------------------------


class _Graph:
    """In the place of `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.tape = Tape()

    def replay(self) -> None:
        assert self.tape.steps, "nothing was recorded"
        self.tape.play()


class _Stream:
    """In the place of `torch.cuda.Stream`: everything is done at once."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device

    def wait_stream(self, other: _Stream) -> None:
        assert isinstance(other, _Stream)

    def synchronize(self) -> None:
        _DEVICE.waits.append("synchronize")


@contextmanager
def _recorded(graph: _Graph, *rest: Any, **options: Any) -> Iterator[None]:
    """In the place of `torch.cuda.graph`, whose arguments it takes."""
    inspect.signature(_REAL_GRAPH.__init__).bind(None, graph, *rest, **options)
    _DEVICE.tapes.append(graph.tape)
    try:
        yield
    finally:
        _DEVICE.tapes.remove(graph.tape)
    graph.tape.spoil()  # a real capture computes nothing


_REAL_GRAPH = torch.cuda.graph
_REAL_WORK = Engine._main


def _work_on_device(engine: Engine) -> None:
    with _Literals(), _Mode():  # type: ignore[no-untyped-call]
        _REAL_WORK(engine)


@contextmanager
def fake_cuda() -> Iterator[None]:
    """The device exists inside."""
    _DEVICE.waits.clear()
    cuda: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "get_device_name": lambda *_: "a device in name alone",
        "CUDAGraph": _Graph,
        "graph": _recorded,
        "Stream": _Stream,
        "stream": lambda _: nullcontext(),
        "current_stream": _Stream,
        "graph_pool_handle": lambda: (0, 1),
        "synchronize": lambda *_: _DEVICE.waits.append("synchronize"),
    }
    there = mock.patch.multiple(torch.cuda, **cuda)
    with there, mock.patch.object(Engine, "_main", _work_on_device), _Literals(), _Mode():  # type: ignore[no-untyped-call]
        yield


def on_device(module: nn.Module) -> None:
    """Move a module's weights to the device, in place."""
    with torch.inference_mode():
        module.to(DEVICE)
