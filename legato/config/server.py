"""Settings of the server (frozen) and their defaults. Engine settings are in `EngineConfig`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from legato.config.aliases import DEFAULT_MODEL_ALIASES
from legato.errors import InputError

# fmt: off
OPENAI_VOICES = (
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse",
)
"""Voice names of OpenAI's speech API. An alias of a built-in voice unless the model has a voice of that name."""

DASHSCOPE_VOICES = (
    "cherry", "serena", "ethan", "chelsie", "momo", "vivian", "moon", "maia", "kai", "nofish", "bella", "jennifer",
    "ryan", "katerina", "aiden", "eldric sage", "mia", "mochi", "bellona", "vincent", "bunny", "neil", "elias",
    "arthur", "nini", "ebona", "seren", "pip", "stella", "bodega", "sonrisa", "alek", "dolce", "sohee", "ono anna",
    "lenn", "emilien", "andre", "radio gol", "jada", "dylan", "li", "marcus", "roy", "peter", "sunny", "eric",
    "rocky", "kiki",
)
"""System voices of the hosted Qwen-TTS service. The DashScope protocol maps them to built-in voices in the same way."""
# fmt: on


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Network, limits and timeouts of one server.

    Names:
        `model_id`: the model's id in `/v1/models`.
        `api_key`: required from clients; "" disables authentication, unless there is an `api_keys_file`.
        `api_keys_file`: more keys, one a line: `NAME KEY`.
        `model_aliases`: alias -> id of a model; "" is the default model. The alias "*" stands for every unknown name.
        `voice_aliases`: folded alias -> voices, of which the first that the model has counts (`aliases.folded_name`);
            takes precedence over the built-in mapping of OpenAI's voice names.
    Access:
        `voices_folder`: where uploaded voices are stored; None rejects uploads.
        `root_path`: path prefix under which a reverse proxy serves this server, such as "/speech"; "" for none.
        `trusted_proxies`: addresses or networks of reverse proxies whose `X-Forwarded-*` and `X-Request-Id` count.
        `ssl_certfile`, `ssl_keyfile`: PEM files for TLS; without a key file, the certificate's file has the key.
        `cors_origins`: other web origins that may call the server; none by default.
        `allowed_hosts`: more host names that `Host` may have. IP addresses, localhost, `.local` names and the name of
            this machine are always allowed; with a key, every name is (protection against DNS rebinding). Pages of
            these hosts count as the server's own.
        `remote_references`: allow `ref_audio` URLs (private addresses are always rejected).
        `media_domains`: if not empty, `ref_audio` URLs must point to these domains or their subdomains.
    Limits; larger requests are errors 413 or 422:
        `bodies_bytes`: all request bodies in memory at the same time; beyond it, requests are refused with 503.
        `body_bytes`, `text_characters`, `reference_bytes`: request body, text, reference recording.
        `batch_characters`: texts of a batch together.
        `records`: number of requests that `/v1/requests/{id}` can report.
        `voices`: number of uploaded voices.
        `connections`: open connections, at most three quarters of the files that the process may open. Beyond it, the
        connection that has waited longest for a request is closed, or the new one refused.
        `ahead_frames`: frames that may wait for a slow client before generation is paused.
        `client_streams`: streams of one client (the name of its key, else its address) at the same time; error 429.
        `socket_utterances`: utterances of one socket that have not ended; more are an error 429.
    Timeouts in seconds:
        `request_s`: total time of a request.
        `batch_s`: total time of a batch; each of its items has `request_s`.
        `stall_s`: time during which a client reads nothing.
        `idle_s`: time without messages or audio on a WebSocket.
        `text_s`: time without text for an utterance that waits for it; the utterance then fails (`text_timeout`).
        `socket_s`: age at which a socket is closed, once it is idle and at most `drain_s` later.
        `comment_s`: interval of comments in an event stream that has nothing to send yet.
        `hold_s`: how long a FLAC file is held back by default, so that its header can have the length.
        `ping_s`: interval of WebSocket pings, and time allowed for the reply.
        `header_s`: time for the header of a request.
        `body_s`: time for the body of a request.
        `keep_alive_s`: time without a request on a kept connection.
        `drain_s`: time that active streams get to finish after SIGTERM.
        `step_s`: longest healthy engine step. While one takes longer, `/health` and `/ready` return 503.
        `watchdog_s`: `legato serve` exits if the engine is stuck or dead for this long; 0 disables it.
    Others:
        `wyoming_port`: TCP port of the Wyoming protocol (no authentication); 0 for any free port, None to disable it.
        `wyoming_host`: address on which it listens; loopback by default, because the protocol has no keys.
        `warm_up`: synthesize a short text at start-up.
        `replica`: name of this server in a cluster, which becomes a part of request ids; lower-case letters and digits.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_id: str = "embedded"
    api_key: str = field(default="", repr=False)
    api_keys_file: Path | None = None
    model_aliases: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULT_MODEL_ALIASES))
    voice_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    voices_folder: Path | None = None
    root_path: str = ""
    trusted_proxies: tuple[str, ...] = ()
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    remote_references: bool = False
    media_domains: tuple[str, ...] = ()
    bodies_bytes: int = 48 * 2**20
    body_bytes: int = 32 * 2**20
    text_characters: int = 20_000
    batch_characters: int = 200_000
    reference_bytes: int = 20 * 2**20
    request_s: float = 900.0
    batch_s: float = 14_400.0
    stall_s: float = 30.0
    idle_s: float = 300.0
    text_s: float = 60.0
    socket_s: float = 14_400.0
    comment_s: float = 15.0
    hold_s: float = 20.0
    ping_s: float = 20.0
    ahead_frames: int = 250
    client_streams: int = 32
    socket_utterances: int = 1000
    records: int = 1000
    voices: int = 1000
    connections: int = 1000
    header_s: float = 10.0
    body_s: float = 120.0
    keep_alive_s: float = 5.0
    drain_s: float = 30.0
    step_s: float = 10.0
    watchdog_s: float = 60.0
    wyoming_port: int | None = None
    wyoming_host: str = "127.0.0.1"
    warm_up: bool = True
    replica: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-z]*", self.replica):
            raise InputError(f"replica must be lower-case letters and digits, not {self.replica!r}", field="replica")
        if not 0 <= self.port < 2**16:
            raise InputError(f"port must be 0 (any free port) to 65535, not {self.port}", field="port")
        if self.wyoming_port is not None and not 0 <= self.wyoming_port < 2**16:
            raise InputError(
                f"wyoming_port must be None (off) or 0 (any free port) to 65535, not {self.wyoming_port}",
                field="wyoming_port",
            )
        for name in (
            "bodies_bytes",
            "body_bytes",
            "text_characters",
            "batch_characters",
            "reference_bytes",
            "ahead_frames",
            "client_streams",
            "socket_utterances",
            "records",
            "voices",
            "connections",
        ):
            if not getattr(self, name) >= 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}", field=name)
        timeouts = (
            "request_s",
            "batch_s",
            "stall_s",
            "idle_s",
            "text_s",
            "socket_s",
            "comment_s",
            "hold_s",
            "ping_s",
            "drain_s",
            "step_s",
            "header_s",
            "body_s",
            "keep_alive_s",
        )
        for name in timeouts:
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(
                    f"{name} must be positive and finite, in seconds, not {getattr(self, name)}", field=name
                )
        if not 0 <= self.watchdog_s < float("inf"):
            raise InputError(f"watchdog_s must be 0 (off) or finite, not {self.watchdog_s}", field="watchdog_s")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise InputError(
                f"root_path must begin with / and not end with it, not {self.root_path!r}", field="root_path"
            )
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise InputError("ssl_keyfile needs ssl_certfile", field="ssl_keyfile")
        if self.api_key != self.api_key.strip() or not self.api_key.isascii():
            raise InputError("the API key must be ASCII, without leading or trailing spaces", field="api_key")
