"""The requests that Open WebUI sends: its lists of models and voices, and a speech. Written from its documented API."""

from __future__ import annotations

import json
import urllib.request

from checks import TEXT, URL, check


def get(path: str) -> dict[str, list[dict[str, str]]]:
    """A list. Open WebUI sends no key with it."""
    with urllib.request.urlopen(f"{URL}/v1{path}", timeout=60) as answer:
        return json.load(answer)


def lists() -> None:
    """Objects with id and name."""
    assert {model["id"] for model in get("/audio/models")["models"]} >= {"tts-1"}
    voices = {voice["id"]: voice["name"] for voice in get("/audio/voices")["voices"]}
    assert "heart" in voices


def speech() -> None:
    """The request of the speaker button; the answer is stored as an MP3 file."""
    for voice in get("/audio/voices")["voices"][:2]:
        fields = {"model": "tts-1", "input": TEXT, "voice": voice["id"]}
        request = urllib.request.Request(
            f"{URL}/v1/audio/speech", json.dumps(fields).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.headers["Content-Type"] == "audio/mpeg"
            assert len(answer.read()) > 5000


print(json.dumps({"package": "Open WebUI (its requests)", "version": "0.12"}), flush=True)
check("lists", lists)
check("speech", speech)
