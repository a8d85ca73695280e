"""Heartbeat of the engine thread: whether it runs, and for how long its current step has been running.

The engine owns one `Heartbeat` for its lifetime. The engine thread writes; any thread may read `health`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

FAILED_STEPS = 3
"""Failed steps without a generated frame between them after which the engine counts as broken."""


class ThreadState(Enum):
    """State of the engine thread."""

    RUNNING = "running"
    CLOSED = "closed"
    """It ended because the engine was closed."""
    DEAD = "dead"
    """It ended for any other reason."""


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """State of an engine at one moment.

    `step_age_s`: seconds since the current step started, which is when the previous one finished or the work arrived; 0
    while the engine has nothing to do. `failed_in_a_row`: failed steps since the last one that generated a frame.
    `steps`, `failed_steps`: finished and failed steps since the start.
    """

    thread: ThreadState
    step_age_s: float
    failed_in_a_row: int
    steps: int
    failed_steps: int

    def fault(self, limit_s: float) -> str | None:
        """Why the engine cannot be relied on, in one sentence; None if it works. `limit_s`: longest healthy step."""
        if self.thread is ThreadState.DEAD:
            return "the engine thread has died"
        if self.thread is ThreadState.CLOSED:
            return "the engine is closed"
        if self.step_age_s > limit_s:
            return f"the engine has not finished a step for {self.step_age_s:.0f} s"
        if self.failed_in_a_row >= FAILED_STEPS:
            return f"the last {self.failed_in_a_row} engine steps have failed"
        return None


class Heartbeat:
    """Times of the engine's steps and the state of its thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state = ThreadState.RUNNING
        self._step_started_s: float | None = None
        self._failed_in_a_row = 0
        self._steps = 0
        self._failed_steps = 0

    def step_started(self) -> None:
        """The engine thread begins a step."""
        with self._lock:
            self._step_started_s = self._clock()

    def step_finished(self, *, failed: bool, progress: bool) -> None:
        """The step returned or raised. Until the next one starts, the engine thread waits for commands.

        `progress`: it generated a frame. A step without work says nothing about the device, so only progress ends a
        row of failures.
        """
        with self._lock:
            self._step_started_s = None
            if failed:
                self._failed_steps += 1
                self._failed_in_a_row += 1
                return
            self._steps += 1
            if progress:
                self._failed_in_a_row = 0

    def thread_ended(self, state: ThreadState) -> None:
        """The engine thread is about to end."""
        with self._lock:
            self._state = state
            self._step_started_s = None

    def health(self) -> EngineHealth:
        """The present state. May be called from any thread; never waits for the engine."""
        with self._lock:
            now_s = self._clock()
            return EngineHealth(
                thread=self._state,
                step_age_s=0.0 if self._step_started_s is None else max(0.0, now_s - self._step_started_s),
                failed_in_a_row=self._failed_in_a_row,
                steps=self._steps,
                failed_steps=self._failed_steps,
            )
