"""Several models behind one server: every route finds the model that a request names, with that model's audio."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import click
import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect
from wyoming.client import AsyncTcpClient
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeVoice

from legato.api import Legato, load
from legato.cli.serve_options import ServeOptions
from legato.client.socket import SpeechClient, SpeechError
from legato.config.server import ServerConfig
from legato.engine.heartbeat import EngineHealth, ThreadState
from legato.errors import InputError
from legato.server.app import create_app
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running, wait_for
from tests.server.serve_command import parsed_options
from tests.server.sockets import run_client, ws

TEXT = "Some words."
SHORT: dict[str, object] = {"voice": "default", "seed": 3, "max_new_tokens": 4}
Engines = dict[str, Legato]


@pytest.fixture(scope="module")
def engines(tiny_checkpoint: TinyCheckpoint) -> Iterator[Engines]:
    """The default model and another one, with other voices."""
    with (
        load(tiny_checkpoint("tiny-custom-voice"), max_seq_len=256) as first,
        load(tiny_checkpoint("tiny-embedded"), max_seq_len=512) as second,
    ):
        yield {"first": first, "second": second}


@pytest.fixture(scope="module")
def server(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    config = ServerConfig(wyoming_port=0, warm_up=False, voices_folder=tmp_path_factory.mktemp("voices"))
    with running(engines, config) as server:
        yield server


def expected(tts: Legato) -> np.ndarray:
    """The 16-bit samples of `TEXT` by the engine itself."""
    samples = tts.say(TEXT, seed=3, max_frames=4).samples
    return np.clip(np.rint(samples * 32768), -32768, 32767)


def post(server: Running, model: str) -> np.ndarray:
    body = {"input": TEXT, "model": model, "response_format": "pcm", "seed": 3, "max_new_tokens": 4}
    response = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return np.frombuffer(response.content, dtype="<i2")


def assert_audio(received: np.ndarray, tts: Legato) -> None:
    samples = expected(tts)
    assert len(received) == len(samples) > 0
    assert np.abs(received - samples).max() <= 1


def test_models_of_the_test_differ(engines: Engines) -> None:
    """Control: the tests below could not tell the models apart otherwise."""
    first, second = (expected(tts) for tts in engines.values())
    assert len(first) != len(second) or np.abs(first - second).max() > 100


def test_http_request_selects_the_model(server: Running, engines: Engines) -> None:
    for name, model in (("", "first"), ("first", "first"), ("tts-1", "first"), ("second", "second")):
        assert_audio(post(server, name), engines[model])
    response = httpx.post(f"{server.url}/v1/audio/speech", json={"input": TEXT, "model": "third"})
    assert response.status_code == 404
    assert "'first', 'second'" in response.text


def test_model_list_has_the_capabilities_of_each(server: Running, engines: Engines) -> None:
    entries = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert [entry["id"] for entry in entries] == ["first", "second", "tts-1", "tts-1-hd", "gpt-4o-mini-tts", "kokoro"]
    assert [entry["legato"]["kind"] for entry in entries[:2]] == ["custom_voice", "embedded"]
    assert httpx.get(f"{server.url}/v1/models/second").json()["legato"]["kind"] == "embedded"
    assert httpx.get(f"{server.url}/v1/models/third").status_code == 404
    for model, tts in engines.items():
        voices = httpx.get(f"{server.url}/v1/audio/voices", params={"model": model}).json()["voices"]
        assert [voice["id"] if isinstance(voice, dict) else voice for voice in voices] == [
            voice.name for voice in tts.voices()
        ]


def test_socket_changes_the_model_between_utterances(server: Running, engines: Engines) -> None:
    async def client() -> None:
        async with SpeechClient(ws(server), {"model": "second", **SHORT}) as speech:
            for index, model in enumerate(("second", "first", "second")):
                await speech.configure({"model": model, **SHORT})
                await speech.write(TEXT)
                await speech.done()
                heard = await speech.receive(index)
                streamed = engines[model].say(iter([TEXT]), seed=3, max_frames=4).samples
                assert np.abs(heard.samples - np.clip(np.rint(streamed * 32768), -32768, 32767)).max() <= 1
            await speech.configure({"model": "third", **SHORT})
            with pytest.raises(SpeechError, match="unknown model 'third'"):
                await speech.receive(3)

    run_client(client())


def test_queued_utterances_keep_their_model(server: Running, engines: Engines) -> None:
    """The second configuration arrives while the first utterance is still being generated."""

    async def client() -> None:
        async with SpeechClient(ws(server), {"model": "first", **SHORT, "max_new_tokens": 12}) as speech:
            await speech.write(TEXT)
            await speech.done()
            await speech.configure({"model": "second", **SHORT})
            await speech.write(TEXT)
            await speech.done()
            heard = [await speech.receive(0), await speech.receive(1)]
        wanted = [
            engines["first"].say(iter([TEXT]), seed=3, max_frames=12).samples,
            engines["second"].say(iter([TEXT]), seed=3, max_frames=4).samples,
        ]
        for received, samples in zip(heard, wanted, strict=True):
            assert np.abs(received.samples - np.clip(np.rint(samples * 32768), -32768, 32767)).max() <= 1

    run_client(client())


@pytest.mark.parametrize(("name", "model"), [("second", "second"), ("first", "first"), ("qwen3-tts-flash", "first")])
def test_realtime_url_selects_the_model(server: Running, name: str, model: str) -> None:
    """Names of the hosted service select the default model."""

    async def client() -> None:
        async with connect(f"{ws(server)}/api-ws/v1/realtime?model={name}") as socket:
            created = json.loads(await socket.recv())
            assert created["session"]["model"] == model

    run_client(client())


def test_wyoming_finds_the_model_by_its_voice(server: Running, engines: Engines) -> None:
    wait_for(lambda: server.state.wyoming_port is not None)

    async def client() -> None:
        assert server.state.wyoming_port is not None
        async with AsyncTcpClient("127.0.0.1", server.state.wyoming_port) as wyoming:
            await wyoming.write_event(Describe().event())
            event = await wyoming.read_event()
            assert event is not None
            programs = Info.from_event(event).tts
            assert [program.name for program in programs] == ["legato", "legato-second"]
            voice = programs[1].voices[0].name
            assert voice not in [each.name for each in programs[0].voices]
            before = sum(engines["second"].stats().outcomes.values())
            await wyoming.write_event(Synthesize(TEXT, voice=SynthesizeVoice(name=voice)).event())
            while (event := await wyoming.read_event()) is not None and event.type != "audio-stop":
                assert event.type != "error", event.data
            assert sum(engines["second"].stats().outcomes.values()) == before + 1

    run_client(client())


def test_metrics_carry_the_model(server: Running) -> None:
    text = server.client().metrics()
    for model in ("first", "second"):
        assert f'legato_frames_total{{model="{model}"}}' in text
    assert text.count("# TYPE legato_frames_total") == 1


def test_id_wins_over_the_alias_of_another_model(engines: Engines) -> None:
    app = create_app({"a": engines["first"], "tts-1": engines["second"]}, ServerConfig(warm_up=False))
    state = app.state.legato
    assert state.for_model("tts-1").tts is engines["second"]
    assert state.for_model("tts-1-hd").tts is state.for_model("").tts is engines["first"]


def test_readiness_names_the_model_that_fails(engines: Engines) -> None:
    app = create_app(engines, ServerConfig(warm_up=False))
    state = app.state.legato
    assert state.status == "first: warming up"
    for each in state.models:
        each.readiness.warm = True
    assert (state.status, state.engine_fault) == ("ready", None)
    dead = EngineHealth(ThreadState.DEAD, step_age_s=0.0, consecutive_failures=1, steps=1, failed_steps=1)
    state.models[1].readiness.health = lambda: dead
    assert state.engine_fault is not None
    assert state.engine_fault.startswith("second: ")
    assert state.models[0].readiness.ready  # requests for the other model are still accepted


def test_models_with_other_sample_rates_or_none_are_refused(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="at least one model"):
        create_app({})
    second = engines["second"].model
    codec = replace(second.config.codec, sample_rate_hz=16000)
    monkeypatch.setattr(engines["second"], "model", replace(second, config=replace(second.config, codec=codec)))
    with pytest.raises(InputError, match=r"first: 24000 Hz, 1920 samples, second: 16000 Hz"):
        create_app(engines)


@pytest.mark.parametrize(
    ("names", "models", "ids"),
    [
        ((), ["embedded"], ["embedded"]),
        (("one",), ["embedded"], ["one"]),
        ((), ["embedded", "folder"], ["embedded", "folder"]),
        (("a", "b"), ["embedded", "embedded"], ["a", "b"]),
    ],
)
def test_ids_of_models(names: tuple[str, ...], models: list[str], ids: list[str]) -> None:
    assert options(names).model_ids(models) == ids


@pytest.mark.parametrize(
    ("names", "models", "message"),
    [
        ((), ["embedded", "embedded"], "several models have the id 'embedded'"),
        (("a", "a"), ["embedded", "folder"], "several models have the id 'a'"),
        (("a",), ["embedded", "folder"], "--name is given 1 times for 2 models"),
        (("a", "b"), ["embedded"], "--name is given 2 times for 1 models"),
    ],
)
def test_ambiguous_ids_are_refused(names: tuple[str, ...], models: list[str], message: str) -> None:
    with pytest.raises(click.UsageError, match=message):
        options(names).model_ids(models)


def options(names: tuple[str, ...]) -> ServeOptions:
    """The server options as the command line gives them."""
    return parsed_options(*(argument for name in names for argument in ("--name", name)))
