"""The `dashscope` package: `MultiModalConversation.call`, whole and streamed, and the realtime socket."""

from __future__ import annotations

import base64
import threading
import urllib.request

import dashscope
from checks import TEXT, URL, check, describe, expect_pcm
from dashscope.audio.qwen_tts_realtime import QwenTtsRealtime, QwenTtsRealtimeCallback

dashscope.api_key = "none"
dashscope.base_http_api_url = f"{URL}/api/v1"
MODEL = "qwen3-tts-flash"


def call() -> None:
    """A file by its URL."""
    answer = dashscope.MultiModalConversation.call(model=MODEL, text=TEXT, voice="Cherry", language_type="English")
    assert answer.status_code == 200, answer
    expect_pcm(urllib.request.urlopen(answer.output.audio.url, timeout=60).read()[44:])


def streamed() -> None:
    """Packets as they are generated."""
    answers = list(dashscope.MultiModalConversation.call(model=MODEL, text=TEXT, voice="Cherry", stream=True))
    expect_pcm(b"".join(base64.b64decode(answer.output.audio.data) for answer in answers))


def realtime() -> None:
    """Text in pieces over the socket."""
    audio: list[bytes] = []
    finished = threading.Event()

    class Listener(QwenTtsRealtimeCallback):
        def on_event(self, event: dict[str, str]) -> None:
            if event["type"] == "response.audio.delta":
                audio.append(base64.b64decode(event["delta"]))
            if event["type"] == "session.finished":
                finished.set()

    url = URL.replace("http", "ws", 1) + "/api-ws/v1/realtime"
    speech = QwenTtsRealtime(f"{MODEL}-realtime", callback=Listener(), url=url)
    speech.connect()
    speech.update_session(voice="Cherry", mode="server_commit")
    for word in TEXT.split(" "):
        speech.append_text(f"{word} ")
    speech.finish()
    assert finished.wait(60), "no session.finished"
    speech.close()
    expect_pcm(b"".join(audio))


describe("dashscope")
check("MultiModalConversation", call)
check("the same, streamed", streamed)
check("QwenTtsRealtime", realtime)
