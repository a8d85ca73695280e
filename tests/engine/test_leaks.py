"""Resources of a stream are freed when its client goes away, at any time and in any way."""

from __future__ import annotations

import gc
import weakref

import torch

from tests.engine.clients import MakeEngine, read, request, speak, until


def test_dropped_handle_cancels_its_stream_and_frees_it(make_engine: MakeEngine) -> None:
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
    until(lambda: sum(ref() is not None for ref in streams) <= 1)  # the engine thread may still refer to the last one


def test_memory_is_flat_after_500_aborted_streams(make_engine: MakeEngine) -> None:
    """R32: aborts before any text, in the queue, during prefill, between packets, and by dropping the handle."""
    engine = make_engine(queue=600)

    def run_six_clients(first: int) -> None:
        """Six clients for three slots; five of them abort."""
        handles = [engine.submit(request(first + kind, max_frames=50 if kind else 2)) for kind in range(6)]
        for handle in handles[:5]:  # the last one never gets text
            speak(handle)
        next(handles[1])
        for handle in handles[1:3] + handles[4:]:
            handle.cancel()
        del handles[3]  # dropped
        for handle in handles:
            read(handle)

    def memory() -> tuple[int, int, int]:
        """Bytes of all tensors, number of tensors, number of objects."""
        until(lambda: engine.stats().streams_open == 0)
        gc.collect()
        objects = gc.get_objects()
        tensors = [each for each in objects if issubclass(type(each), torch.Tensor)]
        assert not any(each.grad_fn is not None for each in tensors)
        return sum(each.numel() * each.element_size() for each in tensors), len(tensors), len(objects)

    for first in range(0, 60, 6):
        run_six_clients(first)
    before = memory()
    for first in range(0, 600, 6):
        run_six_clients(first)
    after = memory()
    assert engine.stats().outcomes["cancelled"] >= 500
    grown_bytes, grown_tensors, grown = (now - then for now, then in zip(after, before, strict=True))
    assert grown_bytes < 4096
    assert grown_tensors < 10  # leftovers of the last streams, not one per stream
    assert grown < 300
