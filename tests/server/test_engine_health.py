"""`/health`, `/ready`, `/metrics` and the watchdog follow the engine: failing, hung and dead engines."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from legato.api import load
from legato.client.http import Client, IncompleteResponseError, ServerError
from legato.config.server import ServerConfig
from legato.engine.heartbeat import MAX_CONSECUTIVE_FAILURES
from legato.server.watchdog import Watchdog
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, metric, running, wait_for


@pytest.fixture
def server(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """A server of its own, whose engine the test breaks. A step is healthy for half a second."""
    config = ServerConfig(model_id="tiny", warm_up=False, step_s=0.5, drain_s=1.0)
    with load(tiny_checkpoint("tiny-custom-voice"), max_num_seqs=2, max_seq_len=256) as tts, running(tts, config) as up:
        yield up


def status(server: Running, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(server.url + path, timeout=20) as response:
            return int(response.status), str(json.load(response)["status"])
    except urllib.error.HTTPError as error:
        return error.code, str(json.load(error)["status"])


def gauge(server: Running, name: str) -> float:
    text = server.client().metrics()
    assert name.partition("{")[0] in text
    return metric(text, name)


def break_runner(server: Running, monkeypatch: pytest.MonkeyPatch, fault: object) -> None:
    monkeypatch.setattr(server.tts._engine.runner, "predict_frames", fault)


def speak(server: Running) -> None:
    with server.client().speak("A few words.", voice="ryan", max_new_tokens=5) as response:
        response.read()


def test_healthy_engine(server: Running) -> None:
    speak(server)
    assert status(server, "/health") == (200, "ok")
    assert status(server, "/ready") == (200, "ready")
    assert gauge(server, 'legato_engine_thread{state="running"}') == 1
    assert gauge(server, "legato_engine_step_age_seconds") < 0.5
    assert gauge(server, "legato_engine_steps_total") > 1


def test_dead_engine_is_neither_alive_nor_ready(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(_sequences: object) -> None:
        raise SystemExit(1)

    break_runner(server, monkeypatch, die)
    with pytest.raises((ServerError, OSError)):
        speak(server)
    wait_for(lambda: status(server, "/health")[0] == 503)
    assert status(server, "/ready") == (503, "the engine thread has died")
    assert gauge(server, 'legato_engine_thread{state="dead"}') == 1
    with pytest.raises(ServerError) as refused:
        speak(server)
    assert (refused.value.status, refused.value.code) == (503, "not_ready")


def test_hung_step_is_neither_alive_nor_ready_until_it_returns(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    predict_frames = server.tts._engine.runner.predict_frames

    def hang(sequences: list[object]) -> object:
        assert release.wait(60)
        return predict_frames(sequences)  # type: ignore[arg-type]

    break_runner(server, monkeypatch, hang)
    client = threading.Thread(target=speak, args=(server,))
    client.start()
    try:
        wait_for(lambda: status(server, "/health")[0] == 503)
        assert status(server, "/ready")[0] == 503
        assert gauge(server, "legato_engine_step_age_seconds") > 0.5
        with pytest.raises(ServerError) as refused:
            speak(server)
        assert refused.value.code == "not_ready"
    finally:
        release.set()
        client.join()
    wait_for(lambda: status(server, "/ready") == (200, "ready"))
    assert status(server, "/health") == (200, "ok")


def test_engine_whose_steps_always_fail_is_unhealthy(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_sequences: object) -> None:
        raise RuntimeError("the device is lost")

    break_runner(server, monkeypatch, fail)
    for _ in range(MAX_CONSECUTIVE_FAILURES):
        assert status(server, "/ready")[0] == 200
        with pytest.raises((ServerError, OSError)):
            speak(server)
    wait_for(lambda: status(server, "/health")[0] == 503)
    assert gauge(server, "legato_engine_failed_steps_total") == MAX_CONSECUTIVE_FAILURES


def test_failed_warm_up_is_reported(tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(tiny_checkpoint("tiny-custom-voice"), max_seq_len=256) as tts:
        monkeypatch.setattr("legato.server.warmup._TEXT", "")  # no stream can speak it
        with running(tts, ServerConfig(model_id="tiny"), until_ready=False) as server:
            wait_for(lambda: status(server, "/health") == (503, "warm-up failed"))
            assert status(server, "/ready") == (503, "warm-up failed")


@pytest.mark.parametrize("faults", [["dead"] * 1000, [None] * 5 + ["stuck"] * 1000])
def test_watchdog_ends_the_process_after_its_time(faults: list[str | None]) -> None:
    ended = threading.Event()
    remaining = iter(faults)
    with Watchdog(lambda: next(remaining), 0.2, end_process=ended.set):
        assert ended.wait(20)


@pytest.mark.parametrize(("faults", "limit_s"), [([None], 0.1), (["stuck", None], 0.2), (["dead"], 0.0)])
def test_watchdog_leaves_engines_that_work_or_recover(faults: list[str | None], limit_s: float) -> None:
    ended = threading.Event()
    number = iter(range(10**9))
    with Watchdog(lambda: faults[next(number) % len(faults)], limit_s, end_process=ended.set):
        assert not ended.wait(0.5)


SCRIPT = """
import sys, time
from legato.engine.model_runner import ModelRunner
fault, runs = {fault!r}, []
predict_frames = ModelRunner.predict_frames
def broken(self, sequences):
    runs.append(1)
    if len(runs) > 8:  # after the warm-up
        if fault == "hang":
            time.sleep(600)
        raise {{"exit": SystemExit, "raise": RuntimeError}}[fault]("a fault put in by the test")
    return predict_frames(self, sequences)
ModelRunner.predict_frames = broken
from legato.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("fault", ["hang", "exit", "raise"])
def test_serve_with_a_broken_engine_exits_with_code_70(tiny_checkpoint: TinyCheckpoint, fault: str) -> None:
    model = str(tiny_checkpoint("tiny-custom-voice"))
    options = ["--port", "0", "--threads", "1", "--no-voices", "--watchdog-s", "1", "-m", model]
    command = [sys.executable, "-c", SCRIPT.format(fault=fault), "serve", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            client = _client(process)
            threading.Thread(target=_speak_repeatedly, args=(client,), daemon=True).start()
            assert process.wait(60) == 70
        finally:
            process.kill()


def test_sigterm_ends_a_process_whose_engine_hangs(tiny_checkpoint: TinyCheckpoint) -> None:
    model = str(tiny_checkpoint("tiny-custom-voice"))
    options = ["--port", "0", "--threads", "1", "--no-voices", "--watchdog-s", "0", "--drain-s", "1", "-m", model]
    command = [sys.executable, "-c", SCRIPT.format(fault="hang"), "serve", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            client = _client(process)
            threading.Thread(target=_speak_once, args=(client,), daemon=True).start()
            wait_for(lambda: not _alive(client))
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 70
        finally:
            process.kill()


def _client(process: subprocess.Popen[str]) -> Client:
    assert process.stderr is not None
    url = next(found[0] for line in process.stderr if (found := re.findall(r"http://127\.0\.0\.1:\d+", line)))
    threading.Thread(target=process.stderr.read, daemon=True).start()
    client = Client(url)
    wait_for(client.ready)
    return client


def _alive(client: Client) -> bool:
    try:
        return client.health()
    except ServerError:
        return False


def _speak_once(client: Client) -> None:
    failures = (ServerError, IncompleteResponseError, OSError)
    with (
        contextlib.suppress(*failures),
        client.speak("Some words.", voice="ryan", max_new_tokens=30) as response,
    ):
        response.read()


def _speak_repeatedly(client: Client) -> None:
    for _ in range(2 * MAX_CONSECUTIVE_FAILURES):  # streams that fail in the same step count once
        _speak_once(client)
