"""Which device work of an engine is recorded, at which sizes, and how a batch finds its recording.

Talker step, first code, rest of the frame, and codec windows of up to 8 frames; prompts and longer windows are launched
call by call. A batch is filled up to the next recorded number of rows: idle rows read and write spare slots, which
nobody is ever given. Attention spans and window lengths are rounded up likewise, and masked. Owns the recordings for
the life of the engine. On a CPU there is nothing to record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from legato.config.engine import EngineConfig
from legato.config.model import PhoneTextConfig
from legato.engine.captured import Captured, Function, Recorder, fitting, sizes
from legato.engine.decode import CodecStage, Windows
from legato.engine.framing import WIDE_FRAMES
from legato.engine.kv_pool import KVPool
from legato.engine.leases import CodecLease
from legato.engine.runner import Runner
from legato.engine.steps import FirstCodeInputs, FrameInputs, Steps
from legato.errors import StateError
from legato.models.codec.state import CodecRows
from legato.models.sampling import Drawn
from legato.models.talker.state import KVRows

LEAST_SPAN = 128
"""The shortest attention span that is recorded; shorter ones cost about as much."""
WINDOW_FRAMES = (1, 2, 4, WIDE_FRAMES)
"""The lengths of codec windows that are recorded."""

_log = logging.getLogger(__name__)


def spare_slots(config: EngineConfig, device: torch.device) -> int:
    """Spare slots that each pool of an engine on `device` needs: one where work is recorded, which is on CUDA alone."""
    return int(config.graphs and device.type == "cuda")


def record(runner: Runner, stage: CodecStage, config: EngineConfig) -> None:
    """Record everything, and let `runner` and `stage` launch the recordings from now on. Takes seconds and logs them.

    `UnsupportedError`, naming the switch, where something cannot be recorded.
    """
    steps, windows = runner.compute, stage.windows
    if not isinstance(steps, Steps) or not isinstance(windows, Windows):
        raise StateError("the work of this engine was recorded before")
    began_s = time.monotonic()
    rows = sizes(config.rows_per_call)
    with torch.inference_mode():
        recorder = Recorder(steps.home)
        runner.compute = RecordedSteps(recorder, steps, runner.pool, rows)
        _log.info("%d CUDA graphs of talker and code predictor recorded", recorder.recorded)
        stage.windows = RecordedWindows(recorder, windows, sizes(min(config.streams, config.rows_per_call)))
    seconds = time.monotonic() - began_s
    _log.info("%d CUDA graphs for up to %d rows recorded in %.1f s", recorder.recorded, rows[-1], seconds)


class RecordedSteps:
    """`Steps`, recorded for each of `rows` and, where the past is attended to, for each span."""

    home = torch.device("cpu")

    def __init__(self, recorder: Recorder, steps: Steps, pool: KVPool, rows: tuple[int, ...]) -> None:
        self._rows = rows
        self._spans = sizes(pool.cache.positions, LEAST_SPAN)
        self._talker = {
            (count, span): Captured(
                recorder, f"a talker step of {count} rows", _talker(steps, span), _idle_step(steps, pool.spare, count)
            )
            for count in rows
            for span in self._spans
        }
        self._first_codes = {
            count: Captured(
                recorder, f"first codes of {count} rows", _first_codes(steps), _idle_first_code(steps, count)
            )
            for count in rows
        }
        self._frames = {
            count: Captured(recorder, f"frames of {count} rows", _frames(steps), _idle_frame(steps, count))
            for count in rows
        }

    def talker(self, frames: Tensor, tokens: Tensor, rows: KVRows, positions: Tensor, *, span: int) -> Tensor:
        """See `StepCompute`."""
        recorded = self._talker[fitting(self._rows, len(positions)), fitting(self._spans, span)]
        (hidden,) = recorded(frames, tokens, rows.index, positions)
        return hidden

    def first_codes(self, given: FirstCodeInputs) -> Drawn:
        """See `StepCompute`."""
        return Drawn(*self._first_codes[fitting(self._rows, len(given.hidden))](*given))

    def frames(self, given: FrameInputs) -> Drawn:
        """See `StepCompute`."""
        return Drawn(*self._frames[fitting(self._rows, len(given.hidden))](*given))


class RecordedWindows:
    """`Windows`, recorded for each of `rows` and of `WINDOW_FRAMES`; longer windows are launched call by call."""

    def __init__(self, recorder: Recorder, windows: Windows, rows: tuple[int, ...]) -> None:
        self._windows = windows
        self._rows = rows
        self._recorded = {
            (count, frames): Captured(
                recorder,
                f"codec windows of {count} rows and {frames} frames",
                _window(windows),
                _idle_window(windows, count, frames),
            )
            for count in rows
            for frames in WINDOW_FRAMES
        }

    def decode(self, leases: Sequence[CodecLease], codes: Tensor, counts: Sequence[int]) -> Tensor:
        """See `Windows.decode`."""
        longest = codes.shape[1]
        if longest > WINDOW_FRAMES[-1]:
            return self._windows.decode(leases, codes, counts)
        frames = fitting(WINDOW_FRAMES, longest)
        padded = functional.pad(codes, (0, 0, 0, frames - longest))
        slots = self._windows.pool.rows(leases).slots
        recorded = self._recorded[fitting(self._rows, len(counts)), frames]
        (samples,) = recorded(slots, padded, torch.tensor(list(counts)))
        return samples


# --- what is recorded, and idle rows of it ----------------------------------------------------------------------------


def _talker(steps: Steps, span: int) -> Function:
    def step(frames: Tensor, tokens: Tensor, slots: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        return (steps.talker(frames, tokens, KVRows(slots), positions, span=span),)

    return step


def _first_codes(steps: Steps) -> Function:
    return lambda *given: steps.first_codes(FirstCodeInputs(*given))


def _frames(steps: Steps) -> Function:
    return lambda *given: steps.frames(FrameInputs(*given))


def _window(windows: Windows) -> Function:
    def decode(slots: Tensor, codes: Tensor, frames: Tensor) -> tuple[Tensor, ...]:
        return (windows.advance(CodecRows(slots), codes, frames),)

    return decode


def _idle_step(steps: Steps, spare: int, rows: int) -> tuple[Tensor, ...]:
    talker, text = steps.config.talker, steps.config.talker.text
    ids = text.tables if isinstance(text, PhoneTextConfig) else 1
    whole = partial(torch.full, dtype=torch.int64, device=steps.home)
    frames, tokens = whole((rows, talker.num_codebooks), 0), whole((rows, ids), 0)
    return frames, tokens, whole((rows,), spare), whole((rows,), 0)


def _idle_first_code(steps: Steps, rows: int) -> FirstCodeInputs:
    at, talker = steps.home, steps.config.talker
    return FirstCodeInputs(
        hidden=_idle_hidden(steps, rows),
        seen=torch.zeros(rows, talker.vocab_size, dtype=torch.bool, device=at),
        frames=torch.zeros(rows, dtype=torch.int64, device=at),
        allow_eos=torch.ones(rows, dtype=torch.bool, device=at),
        temperature=torch.ones(rows, device=at),
        top_k=torch.ones(rows, dtype=torch.int64, device=at),
        top_p=torch.ones(rows, device=at),
        repetition_penalty=torch.ones(rows, device=at),
        uniform=torch.zeros(rows, dtype=torch.float64, device=at),
    )


def _idle_frame(steps: Steps, rows: int) -> FrameInputs:
    at = steps.home
    return FrameInputs(
        hidden=_idle_hidden(steps, rows),
        first_code=torch.zeros(rows, dtype=torch.int64, device=at),
        temperature=torch.ones(rows, device=at),
        top_k=torch.ones(rows, dtype=torch.int64, device=at),
        top_p=torch.ones(rows, device=at),
        noise=torch.zeros(rows, steps.config.talker.num_codebooks, dtype=torch.float64, device=at),
    )


def _idle_hidden(steps: Steps, rows: int) -> Tensor:
    return torch.zeros(rows, steps.config.talker.stack.hidden_size, dtype=steps.dtype, device=steps.home)


def _idle_window(windows: Windows, rows: int, frames: int) -> tuple[Tensor, ...]:
    whole = partial(torch.full, dtype=torch.int64, device=windows.device)
    codes = whole((rows, frames, windows.codebooks), 0)
    return whole((rows,), windows.pool.spare), codes, whole((rows,), frames)
