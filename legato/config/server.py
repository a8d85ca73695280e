"""Settings of the server, frozen, each with its one documented default. Knows no engine and no protocol.

Besides this, a server is what its model and its `EngineConfig` make it. The API key may come from the environment, so
that it need not stand in a process list.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from legato.errors import InputError

KEY_VARIABLE = "LEGATO_API_KEY"

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
"""Model names of OpenAI's speech API, which stock clients send; they stand for the model that is loaded."""

OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
    *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
)
"""Voice names of OpenAI's speech API. Where the loaded model has no voice of that name, each stands for one it has."""

DASHSCOPE_VOICES = (
    *("cherry", "serena", "ethan", "chelsie", "momo", "vivian", "moon", "maia", "kai", "nofish", "bella"),
    *("jennifer", "ryan", "katerina", "aiden", "eldric sage", "mia", "mochi", "bellona", "vincent", "bunny", "neil"),
    *("elias", "arthur", "nini", "ebona", "seren", "pip", "stella", "bodega", "sonrisa", "alek", "dolce", "sohee"),
    *("ono anna", "lenn", "emilien", "andre", "radio gol", "jada", "dylan", "li", "marcus", "roy", "peter"),
    *("sunny", "eric", "rocky", "kiki"),
)
"""System voices of the hosted Qwen-TTS service; on its realtime route they stand for the model's in the same way."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How one server listens, what it accepts, and how long it waits.

    `model_id`: the name under which `/v1/models` lists the model. `api_key`: "" lets everybody in.
    `model_aliases`, `voice_aliases`: other names -> the model's, a voice's. `voice_aliases` comes before the built-in
    mapping of OpenAI's names. `voices_folder`: where uploaded voices are kept; None keeps none and refuses uploads.
    `cors_origins`: web origins besides our own that may call; none by default.
    `remote_references`: fetch `ref_audio` URLs of other machines (never of private addresses).
    `body_bytes`, `text_characters`, `reference_bytes`: the largest request, text and recording; more is 413 or 422.
    `request_s`: a request that takes longer is stopped. `stall_s`: so is one whose client takes nothing for so long.
    `idle_s`: a socket on which nothing is said or spoken for so long is closed. `ping_s`: how often a WebSocket's
    client is asked whether it is still there, and how long it may take to answer; one that vanished is gone then.
    `ahead_frames`: how far a stream may run ahead of what its client took; a full queue holds generation back.
    `records`: finished requests that `/v1/requests/{id}` still knows. `voices`: uploaded voices that are kept at most.
    `wyoming_port`: where Wyoming is spoken over TCP, without a key; 0 any free port, -1 not at all.
    `drain_s`: how long streams under way may go on after SIGTERM.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_id: str = "embedded"
    api_key: str = field(default="", repr=False)
    model_aliases: tuple[str, ...] = OPENAI_MODELS
    voice_aliases: Mapping[str, str] = field(default_factory=dict)
    voices_folder: Path | None = None
    cors_origins: tuple[str, ...] = ()
    remote_references: bool = False
    body_bytes: int = 32 * 2**20
    text_characters: int = 20_000
    reference_bytes: int = 20 * 2**20
    request_s: float = 900.0
    stall_s: float = 30.0
    idle_s: float = 300.0
    ping_s: float = 20.0
    ahead_frames: int = 250
    records: int = 1000
    voices: int = 1000
    drain_s: float = 30.0
    wyoming_port: int = -1
    warm_up: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise InputError(f"port must be 0 (any free one) to 65535, not {self.port}", field="port")
        if not -1 <= self.wyoming_port < 2**16:
            raise InputError(f"wyoming_port must be -1 (off) to 65535, not {self.wyoming_port}", field="wyoming_port")
        for name in ("body_bytes", "text_characters", "reference_bytes", "ahead_frames", "records", "voices"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}", field=name)
        for name in ("request_s", "stall_s", "idle_s", "ping_s", "drain_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be above 0 seconds, not {getattr(self, name)}", field=name)
        if self.api_key != self.api_key.strip() or not self.api_key.isascii():
            raise InputError("the API key must be ASCII without blanks around it", field="api_key")


def key_from_environment() -> str:
    """The API key in the environment, or ""."""
    return os.environ.get(KEY_VARIABLE, "").strip()


def default_voices_folder() -> Path:
    """Where uploaded voices are kept unless told otherwise: the user's data folder."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "share") / "legato" / "voices"
