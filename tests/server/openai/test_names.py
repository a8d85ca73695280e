"""Names that stock clients send: model and voice aliases, lists as front ends read them, instructions, GET."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from legato.api import Legato, load
from legato.cli.serve_options import ServeOptions
from legato.config.server import ServerConfig
from legato.errors import InputError
from legato.server.app import create_app
from tests.conftest import TinyCheckpoint
from tests.server.openai.test_voices import HIGH, LOW
from tests.server.running import Running, running
from tests.server.serve_command import parsed_options

NAMES = [
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "e\u0301toile",
    "\u5c0f\u660e",
]
BODY: dict[str, str | int] = {"input": "Some words.", "response_format": "pcm", "max_new_tokens": 2}


@pytest.fixture(scope="module")
def named(tiny_checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two models of different kinds, with aliases from the command line and a shared folder of voices."""
    file = tmp_path_factory.mktemp("aliases") / "aliases.toml"
    file.write_text('[models]\n"house" = "cloner"\n[voices]\nnarrator = ["ann", "vivian"]\nboss = "ryan"\n')
    options = parsed_options("--aliases", str(file), "--model-alias", "extra", "--voice-alias", "Host=vivian")
    folder = tmp_path_factory.mktemp("voices")
    with (
        load(tiny_checkpoint("tiny-custom-voice")) as speaker,
        load(tiny_checkpoint("tiny-base")) as cloner,
    ):
        config = _with_folder(options, folder)
        with running({"speaker": speaker, "cloner": cloner}, config) as server:
            server.client().upload_voice("ann", LOW)
            yield server


def _with_folder(options: ServeOptions, folder: Path) -> ServerConfig:
    return replace(options.config("speaker"), voices_folder=folder, warm_up=False)


@pytest.fixture(scope="module")
def web(named: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=named.url, timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    "model", ["", "speaker", "tts-1", "tts-1-hd", "tts-1-1106", "gpt-4o-mini-tts-2025-12-15", "kokoro", "extra"]
)
def test_known_model_names_select_the_default_model(web: httpx.Client, model: str) -> None:
    answer = web.post("/v1/audio/speech", json={**BODY, "model": model, "voice": "ryan"})
    assert answer.status_code == 200, answer.text


def test_model_alias_selects_its_model(web: httpx.Client) -> None:
    assert web.get("/v1/models/house").json()["legato"]["kind"] == "base"
    assert web.post("/v1/audio/speech", json={**BODY, "model": "house", "voice": "ann"}).status_code == 200
    unknown = web.post("/v1/audio/speech", json={**BODY, "model": "gpt-5"})
    assert unknown.status_code == 404
    assert "--model-alias" in unknown.json()["error"]["message"]


def test_a_star_stands_for_every_unknown_model(named: Running) -> None:
    engines = {state.config.model_id: state.tts for state in named.state.models}
    app = create_app(engines, ServerConfig(model_aliases={"*": "cloner", "a": ""}, warm_up=False))
    state = app.state.legato
    found = [state.for_model(name).config.model_id for name in ("speaker", "a", "anything", "tts-1", "")]
    assert found == ["speaker", "speaker", "cloner", "cloner", "speaker"]


def test_alias_of_a_model_that_is_not_loaded_is_refused(named: Running) -> None:
    engines = {"speaker": named.tts}
    with pytest.raises(InputError, match="alias 'a' names the model 'b', which is not loaded: use one of 'speaker'"):
        create_app(engines, ServerConfig(model_aliases={"a": "b"}))


@pytest.mark.parametrize(
    ("alias", "voice"), [("boss", "ryan"), ("BOSS", "ryan"), ("narrator", "vivian"), ("host", "vivian")]
)
def test_voice_aliases(web: httpx.Client, alias: str, voice: str) -> None:
    one, other = (web.post("/v1/audio/speech", json={**BODY, "voice": name}).content for name in (alias, voice))
    assert one
    assert one == other


def test_an_alias_uses_the_first_voice_that_the_model_has(web: httpx.Client) -> None:
    fields = {**BODY, "model": "cloner"}
    one, other = (web.post("/v1/audio/speech", json={**fields, "voice": name}) for name in ("narrator", "ann"))
    assert one.status_code == 200, one.text
    assert one.content == other.content
    refused = web.post("/v1/audio/speech", json={**fields, "voice": "boss"})  # only the other model has that voice
    assert refused.json()["error"]["code"] == "unknown_voice"


@pytest.mark.parametrize("model", ["speaker", "cloner"])
def test_every_listed_voice_is_an_object_that_can_be_spoken(web: httpx.Client, model: str) -> None:
    answer = web.get("/v1/audio/voices", params={"model": model}).json()
    assert answer["voices"]
    for voice in answer["voices"]:
        assert isinstance(voice["name"], str)
        spoken = web.post("/v1/audio/speech", json={**BODY, "model": model, "voice": voice["id"]})
        assert spoken.status_code == 200, (voice, spoken.text)
    strings = web.get("/v1/audio/voices", params={"model": model, "format": "names"}).json()
    assert strings["voices"] == [voice["id"] for voice in answer["voices"]]
    assert strings["uploaded_voices"] == answer["uploaded_voices"]
    kinds = {voice["id"]: voice["kind"] for voice in answer["voices"]}
    assert kinds["narrator"] == "alias"
    assert (kinds.get("ann"), kinds.get("ryan")) == (("uploaded", None) if model == "cloner" else (None, "built-in"))


def test_lists_as_open_webui_reads_them(web: httpx.Client) -> None:
    models = web.get("/v1/audio/models").json()["models"]
    assert [model["id"] for model in models][:3] == ["speaker", "cloner", "tts-1"]
    assert all(model["name"] == model["id"] for model in models)
    voices = {voice["id"]: voice["name"] for voice in web.get("/v1/audio/voices").json()["voices"]}
    assert voices["vivian"] == "vivian"
    assert web.get("/v1/audio/voices", params={"format": "csv"}).status_code == 400


@pytest.mark.parametrize("model", ["speaker", "cloner"])
def test_instructions_that_a_model_does_not_take_are_noted(web: httpx.Client, model: str) -> None:
    fields = {**BODY, "model": model, "voice": "ryan" if model == "speaker" else "ann"}
    plain = web.post("/v1/audio/speech", json=fields)
    answer = web.post("/v1/audio/speech", json={**fields, "instructions": "Speak like a pirate."})
    assert answer.status_code == 200, answer.text
    assert "instruct" in answer.headers["x-notes"]
    assert answer.content == plain.content


@pytest.mark.parametrize("name", NAMES)
def test_voice_names_of_every_script(web: httpx.Client, named: Running, name: str) -> None:
    """Uploaded, listed, spoken, and deleted, in composed and in decomposed form."""
    named.client().upload_voice(name, HIGH)
    composed, decomposed = (unicodedata.normalize(form, name) for form in ("NFC", "NFD"))
    assert composed in named.client().voices() or composed in _names(web)
    for spelling in (composed, decomposed, composed.upper()):
        fields = {**BODY, "model": "cloner", "voice": spelling}
        assert web.post("/v1/audio/speech", json=fields).status_code == 200
    named.client().delete_voice(decomposed)
    assert composed not in _names(web)


def _names(web: httpx.Client) -> list[str]:
    answer = web.get("/v1/audio/voices", params={"model": "cloner", "format": "names"})
    voices = answer.json()["voices"]
    assert isinstance(voices, list)
    return voices


@pytest.mark.parametrize("name", ["default", "Default", "AUTO", "none", "voice_0123456789abcdef"])
def test_reserved_names_are_refused(web: httpx.Client, name: str) -> None:
    answer = web.post("/v1/audio/voices", data={"name": name}, files={"audio_sample": LOW})
    assert answer.status_code == 400
    assert "reserved name" in answer.json()["error"]["message"]


def test_openai_names_of_one_server_do_not_break_another(
    tiny_checkpoint: TinyCheckpoint, named: Running, web: httpx.Client
) -> None:
    """A clone server where "alloy" was uploaded shares its folder with a server of built-in voices."""
    before = web.post("/v1/audio/speech", json={**BODY, "voice": "alloy"}).content
    named.client().upload_voice("alloy", LOW)
    try:
        cloned = web.post("/v1/audio/speech", json={**BODY, "model": "cloner", "voice": "alloy"})
        assert cloned.status_code == 200
        assert web.post("/v1/audio/speech", json={**BODY, "voice": "alloy"}).content == before
        with load(tiny_checkpoint("tiny-embedded")) as tts:
            _speak_alloy(tts, named.state.config)
    finally:
        named.client().delete_voice("alloy")


def _speak_alloy(tts: Legato, config: ServerConfig) -> None:
    other = ServerConfig(voices_folder=config.voices_folder, warm_up=False)
    with running(tts, other, until_ready=True) as server, server.client().speak("Hello.", voice="alloy") as body:
        assert sum(len(samples) for samples in body.pcm())
    assert server.state.names.voice_names() == list(server.state.names.speakers)


def test_get_speaks_like_post(web: httpx.Client) -> None:
    fields = {**BODY, "voice": "ryan", "seed": 3}
    posted = web.post("/v1/audio/speech", json={**fields, "packet_frames": [1, 2]})
    got = web.get("/v1/audio/speech", params={**fields, "packet_frames": "1,2", "speed": "1.0", "unknown": "x"})
    assert got.status_code == 200, got.text
    assert np.array_equal(np.frombuffer(got.content, "<i2"), np.frombuffer(posted.content, "<i2"))
    assert got.headers["content-type"] == posted.headers["content-type"]
    assert got.headers["x-ignored-fields"] == "unknown"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "input"),
        ("input=", "input"),
        ("input=Hello.&voice=nobody", "voice"),
        ("input=Hello.&stream=maybe", "stream"),
        ("input=Hello.&seed=1.5", "seed"),
    ],
)
def test_get_refuses_what_post_refuses(web: httpx.Client, query: str, field: str) -> None:
    answer = web.get(f"/v1/audio/speech?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


def test_get_refuses_too_many_fields(web: httpx.Client) -> None:
    answer = web.get("/v1/audio/speech?" + "&".join(f"f{number}=1" for number in range(200)))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_form")


FOREIGN = "http://evil.example"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "same-origin", "referer": "URL/"}, 200),
        ({"referer": "URL/page?x=http://evil.example"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site", "referer": f"{FOREIGN}/page"}, 403),
        ({"referer": f"{FOREIGN}/page"}, 403),
        ({"referer": f"{FOREIGN}?URL/"}, 403),
        ({"referer": "http://["}, 403),
        ({"referer": "about:blank"}, 403),
        ({"origin": FOREIGN}, 403),
    ],
)
def test_pages_of_other_origins_cannot_load_speech(
    named: Running, web: httpx.Client, headers: dict[str, str], status: int
) -> None:
    sent = {name: value.replace("URL", named.url) for name, value in headers.items()}
    answer = web.get("/v1/audio/speech", params={**BODY, "input": "Hello."}, headers=sent)
    assert answer.status_code == status, answer.text


def test_get_follows_the_rules_for_allowed_origins_and_keys(tiny_checkpoint: TinyCheckpoint) -> None:
    config = ServerConfig(warm_up=False, cors_origins=(FOREIGN,), api_key="secret")
    with load(tiny_checkpoint("tiny-custom-voice")) as tts, running(tts, config) as server:
        url, headers = f"{server.url}/v1/audio/speech", {"referer": f"{FOREIGN}/page", "sec-fetch-site": "cross-site"}
        assert httpx.get(url, params=BODY, headers=headers).status_code == 401
        allowed = httpx.get(url, params=BODY, headers={**headers, "authorization": "Bearer secret"}, timeout=60)
        assert allowed.status_code == 200
        other = httpx.get(url, params=BODY, headers={"referer": "http://other.example/"})
        assert other.status_code == 403
