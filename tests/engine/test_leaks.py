"""Clients that go: what they held goes with them, however and whenever they left."""

from __future__ import annotations

import gc
import weakref

import torch

from tests.engine.clients import MakeEngine, read, request, speak, until


def test_a_dropped_handle_cancels_its_stream_and_leaves_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    streams = []
    for number in range(100):
        handle = speak(engine.submit(request(number, max_frames=2 if number % 2 else 100)))
        streams.append(weakref.ref(handle._stream.intake))
        if number % 2:
            read(handle)
        else:
            next(handle)
        del handle
    until(lambda: engine.stats().streams_open == 0)
    assert engine.stats().outcomes["cancelled"] >= 40
    gc.collect()
    until(lambda: sum(ref() is not None for ref in streams) <= 1)  # the engine's thread may still name the last one


def test_five_hundred_aborts_and_hundreds_of_streams_leave_memory_flat(make_engine: MakeEngine) -> None:
    """R32. At every point: before any text, in the queue, in its prompt, between packets, by dropping the handle."""
    engine = make_engine(queue=600)

    def visit(first: int) -> None:
        """Six at once, for three slots; five of them are aborted."""
        handles = [engine.submit(request(first + kind, max_frames=50 if kind else 2)) for kind in range(6)]
        for handle in handles[:5]:  # the last one gets no text
            speak(handle)
        next(handles[1])
        for handle in handles[1:3] + handles[4:]:
            handle.cancel()
        del handles[3]  # dropped
        for handle in handles:
            read(handle)

    def held() -> tuple[int, int, int]:
        """Bytes of all tensors, their number, and the number of all objects."""
        until(lambda: engine.stats().streams_open == 0)
        gc.collect()
        things = gc.get_objects()
        tensors = [each for each in things if issubclass(type(each), torch.Tensor)]
        assert not any(each.grad_fn is not None for each in tensors)
        return sum(each.numel() * each.element_size() for each in tensors), len(tensors), len(things)

    for first in range(0, 60, 6):
        visit(first)
    before = held()
    for first in range(0, 600, 6):
        visit(first)
    after = held()
    assert engine.stats().outcomes["cancelled"] >= 500
    grown_bytes, grown_tensors, grown = (now - then for now, then in zip(after, before, strict=True))
    assert grown_bytes < 4096
    assert grown_tensors < 10  # what the engine's thread happened to hold, and not one for each
    assert grown < 300
