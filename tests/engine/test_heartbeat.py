"""Health of the engine thread: one failed step, failed steps in a row, a step that never returns, a dead thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from legato.engine.engine import Engine
from legato.engine.heartbeat import MAX_CONSECUTIVE_FAILURES, EngineHealth, Heartbeat, ThreadState
from legato.engine.leases import KVLease
from legato.engine.sequence import Sequence as TalkerSequence
from legato.errors import EngineClosedError, LegatoError
from legato.types import SequenceId
from tests.engine.clients import MakeEngine, read, request, speak, until

LIMIT_S = 10.0


def healthy(engine: Engine) -> bool:
    return engine.health().unhealthy_reason(LIMIT_S) is None


def fail(engine: Engine, monkeypatch: pytest.MonkeyPatch, fault: Callable[[], None]) -> None:
    """Call `fault` in every step of the runner."""
    predict_frames = engine.runner.predict_frames

    def faulty(sequences: Sequence[TalkerSequence]) -> object:
        fault()
        return predict_frames(sequences)

    monkeypatch.setattr(engine.runner, "predict_frames", faulty)


def speak_and_fail(engine: Engine) -> None:
    with pytest.raises(LegatoError):
        read(speak(engine.submit(request(0))))


def test_one_failed_step_leaves_the_engine_healthy(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    failures = [RuntimeError("the device had a hiccup")]

    def once() -> None:
        if failures:
            raise failures.pop()

    fail(engine, monkeypatch, once)
    speak_and_fail(engine)
    assert healthy(engine)
    assert engine.health().failed_steps == 1
    assert read(speak(engine.submit(request(0))))
    assert engine.health().consecutive_failures == 0


def test_engine_whose_steps_always_fail_is_unhealthy_and_recovers(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()

    def always() -> None:
        raise RuntimeError("the device is lost")

    with monkeypatch.context() as patch:
        fail(engine, patch, always)
        for _ in range(MAX_CONSECUTIVE_FAILURES):
            assert healthy(engine)
            speak_and_fail(engine)
        until(lambda: not healthy(engine))
        assert "failed" in str(engine.health().unhealthy_reason(LIMIT_S))
    assert read(speak(engine.submit(request(0))))
    until(lambda: healthy(engine))


def test_leaked_slot_ends_the_thread_and_is_reported(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    acquire = engine.kv_pool.acquire

    leaked: list[KVLease] = []

    def leaking(sequence: SequenceId) -> KVLease:
        leaked.append(acquire(sequence))
        return acquire(sequence)

    monkeypatch.setattr(engine.kv_pool, "acquire", leaking)
    with contextlib.suppress(LegatoError):  # the leak may be found after the end of the stream
        read(speak(engine.submit(request(0))))
    until(lambda: engine.health().thread is ThreadState.DEAD)
    assert not healthy(engine)
    with pytest.raises(EngineClosedError):
        engine.submit(request(1))
    for lease in leaked:
        engine.kv_pool.release(lease)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_thread_that_dies_is_reported_and_its_streams_end(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    engine = make_engine()

    def die() -> None:
        raise error

    fail(engine, monkeypatch, die)
    speak_and_fail(engine)
    until(lambda: not healthy(engine))
    assert engine.health().thread is ThreadState.DEAD


def test_step_that_never_returns_ages_and_close_is_bounded(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    entered, release = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        assert release.wait(60)

    fail(engine, monkeypatch, hang)
    handle = speak(engine.submit(request(0)))
    assert entered.wait(60)
    until(lambda: engine.health().step_age_s > 0.2)
    assert engine.health().unhealthy_reason(0.2)
    started_s = time.monotonic()
    assert not engine.close(timeout_s=0.3)
    assert time.monotonic() - started_s < 5
    release.set()
    assert engine.close()
    assert engine.health().thread is ThreadState.CLOSED
    handle.cancel()


def test_idle_engine_has_no_step_age(make_engine: MakeEngine) -> None:
    engine = make_engine()
    read(speak(engine.submit(request(0))))
    engine.submit(request(1))  # waits for text
    until(lambda: engine.health().step_age_s == 0)
    time.sleep(0.05)
    assert engine.health().step_age_s == 0


def test_slow_steps_do_not_bound_a_close_that_makes_progress(make_engine: MakeEngine) -> None:
    engine = make_engine()
    handle = speak(engine.submit(request(0, max_frames=40)))
    assert engine.close(drain=True, timeout_s=30)
    assert read(handle)


def test_heartbeat_reports_limits_and_states() -> None:
    now_s = [0.0]
    heartbeat = Heartbeat(lambda: now_s[0])
    heartbeat.step_started()
    now_s[0] = LIMIT_S
    assert heartbeat.health().unhealthy_reason(LIMIT_S) is None
    now_s[0] += 0.1
    assert "10 s" in str(heartbeat.health().unhealthy_reason(LIMIT_S))
    heartbeat.step_finished(failed=False, progress=True)
    assert heartbeat.health() == EngineHealth(ThreadState.RUNNING, 0.0, 0, 1, 0)
    for state in (ThreadState.CLOSED, ThreadState.DEAD):
        heartbeat.thread_ended(state)
        assert heartbeat.health().unhealthy_reason(LIMIT_S)
