"""Heartbeat of the engine thread: its state, and the age of its current step.

Each engine has one `Heartbeat`. Only the engine thread updates it; any thread may read `health`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

MAX_CONSECUTIVE_FAILURES = 3
"""The engine is unhealthy after this many failed steps without a generated frame in between."""


class ThreadState(Enum):
    """State of the engine thread."""

    RUNNING = "running"
    CLOSED = "closed"
    """The thread ended because the engine was closed."""
    DEAD = "dead"
    """The thread ended for any other reason."""


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """State of an engine at one moment.

    `step_age_s`: seconds since the current step started; 0 while the engine waits for commands.
    `consecutive_failures`: failed steps since the last step that generated a frame. `steps`, `failed_steps`: successful
    and failed steps since the start.
    """

    thread: ThreadState
    step_age_s: float
    consecutive_failures: int
    steps: int
    failed_steps: int

    def unhealthy_reason(self, max_step_s: float) -> str | None:
        """Why the engine is unhealthy, in one sentence; None if it is healthy. `max_step_s`: longest normal step."""
        if self.thread is ThreadState.DEAD:
            return "the engine thread has died"
        if self.thread is ThreadState.CLOSED:
            return "the engine is closed"
        if self.step_age_s > max_step_s:
            return f"the engine has not finished a step for {self.step_age_s:.0f} s"
        if self.consecutive_failures >= MAX_CONSECUTIVE_FAILURES:
            return f"the last {self.consecutive_failures} engine steps have failed"
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
        """Record the start of a step."""
        with self._lock:
            self._step_started_s = self._clock()

    def step_finished(self, *, failed: bool, progress: bool) -> None:
        """Record the end of a step. `failed`: it raised an error. `progress`: it generated a frame.

        A step without work does not use the device, so only a step with progress resets `consecutive_failures`.
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
        """Record the end of the engine thread."""
        with self._lock:
            self._state = state
            self._step_started_s = None

    def health(self) -> EngineHealth:
        """The current state. May be called from any thread; never waits for the engine."""
        with self._lock:
            now_s = self._clock()
            return EngineHealth(
                thread=self._state,
                step_age_s=0.0 if self._step_started_s is None else max(0.0, now_s - self._step_started_s),
                consecutive_failures=self._failed_in_a_row,
                steps=self._steps,
                failed_steps=self._failed_steps,
            )
