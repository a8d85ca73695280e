"""Options of `legato serve`, converted to `ServerConfig`. Holds no state and does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from legato.cli.options import option_group
from legato.config.aliases import ANY_MODEL, DEFAULT_MODEL_ALIASES, Aliases, read_aliases, voice_alias_table
from legato.config.environment import API_KEY_VARIABLE, api_key_from_environment, default_voices_folder
from legato.config.server import ServerConfig

_DEFAULTS = ServerConfig()


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Values of the server options."""

    host: str
    port: int
    api_key: str
    api_keys: Path | None
    name: tuple[str, ...]
    voices: Path | None
    no_voices: bool
    aliases: Path | None
    model_alias: tuple[str, ...]
    voice_alias: tuple[str, ...]
    cors_origin: tuple[str, ...]
    allowed_host: tuple[str, ...]
    root_path: str
    trusted_proxy: tuple[str, ...]
    ssl_certfile: Path | None
    ssl_keyfile: Path | None
    log_format: str
    remote_references: bool
    allowed_media_domain: tuple[str, ...]
    text_characters: int
    request_s: float
    text_s: float
    socket_s: float
    client_streams: int
    socket_utterances: int
    drain_s: float
    watchdog_s: float
    wyoming: int
    wyoming_host: str

    def model_ids(self, models: Sequence[str]) -> list[str]:
        """The ids of `models`: the values of --name in the same order, or the values of --model."""
        if self.name and len(self.name) != len(models):
            raise click.UsageError(
                f"--name is given {len(self.name)} times for {len(models)} models: give one for each"
            )
        ids = list(self.name or models)
        duplicates = sorted({name for name in ids if ids.count(name) > 1})
        if duplicates:
            raise click.UsageError(f"several models have the id {duplicates[0]!r}: give each its own --name")
        return ids

    def config(self, model_id: str) -> ServerConfig:
        """The server settings; `model_id` is the id of the default model."""
        from_file = read_aliases(self.aliases) if self.aliases is not None else Aliases()
        own_voices = voice_alias_table(_parse_alias("--voice-alias", alias, "VOICE") for alias in self.voice_alias)
        own_models = dict(_parse_model_alias(alias) for alias in self.model_alias)
        return ServerConfig(
            host=self.host,
            port=self.port,
            model_id=model_id,
            api_key=self.api_key or api_key_from_environment(),
            model_aliases={**DEFAULT_MODEL_ALIASES, **from_file.models, **own_models},
            voice_aliases={**from_file.voices, **own_voices},
            voices_folder=None if self.no_voices else self.voices or default_voices_folder(),
            cors_origins=self.cors_origin,
            allowed_hosts=self.allowed_host,
            api_keys_file=self.api_keys,
            root_path=self.root_path.rstrip("/"),
            trusted_proxies=self.trusted_proxy,
            ssl_certfile=self.ssl_certfile,
            ssl_keyfile=self.ssl_keyfile,
            wyoming_host=self.wyoming_host,
            remote_references=self.remote_references or bool(self.allowed_media_domain),
            media_domains=self.allowed_media_domain,
            text_characters=self.text_characters,
            request_s=self.request_s,
            text_s=self.text_s,
            socket_s=self.socket_s,
            client_streams=self.client_streams,
            socket_utterances=self.socket_utterances,
            drain_s=self.drain_s,
            watchdog_s=self.watchdog_s,
            wyoming_port=self.wyoming if self.wyoming >= 0 else None,
        )


def _parse_model_alias(alias: str) -> tuple[str, str]:
    """NAME, which selects the default model, or NAME=MODEL."""
    return _parse_alias("--model-alias", alias, "MODEL") if "=" in alias else (alias.strip(), "")


def _parse_alias(option: str, alias: str, target_kind: str) -> tuple[str, str]:
    name, equals, target = alias.partition("=")
    if not (name.strip() and equals and target.strip()):
        raise click.UsageError(f"{option} must be NAME={target_kind}, not {alias!r}")
    return name.strip(), target.strip()


_OPTIONS = (
    click.option(
        "--host",
        default=_DEFAULTS.host,
        show_default=True,
        help="Address to listen on; 0.0.0.0 listens on all IPv4 interfaces.",
    ),
    click.option(
        "--port",
        default=_DEFAULTS.port,
        show_default=True,
        type=click.IntRange(0, 65535),
        help="Port to listen on; 0 selects a free one.",
    ),
    click.option(
        "--api-key",
        default="",
        metavar="KEY",
        help=f"API key that clients must send; prefer the environment variable {API_KEY_VARIABLE}.  [default: none]",
    ),
    click.option(
        "--api-keys",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="File with API keys, one a line: NAME KEY. SIGHUP reads it again.  [default: none]",
    ),
    click.option(
        "--name",
        multiple=True,
        metavar="ID",
        help="Model id in /v1/models; repeatable, one for each --model.  [default: the value of --model]",
    ),
    click.option(
        "--voices",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Folder for uploaded voices.  [default: legato/voices in the user's data folder]",
    ),
    click.option("--no-voices", is_flag=True, help="Refuse voice uploads."),
    click.option(
        "--aliases",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="TOML file with more names of models and voices, in the tables [models] and [voices].  [default: none]",
    ),
    click.option(
        "--model-alias",
        multiple=True,
        metavar="NAME[=MODEL]",
        help=f"Another name of a model (without MODEL: of the default model); the name {ANY_MODEL!r} stands for every "
        f"unknown one. Repeatable, in addition to {', '.join(DEFAULT_MODEL_ALIASES)}.  [default: none]",
    ),
    click.option(
        "--voice-alias",
        multiple=True,
        metavar="NAME=VOICE",
        help="Another name of a voice; repeatable: of several for one NAME, the first that the model has counts.  "
        "[default: none]",
    ),
    click.option(
        "--cors-origin",
        multiple=True,
        metavar="ORIGIN",
        help="Web origin that may call the API (CORS); repeatable.  [default: none]",
    ),
    click.option(
        "--allowed-host",
        multiple=True,
        metavar="NAME",
        help="Host name under which clients may call the server without a key, such as its public name behind a proxy; "
        "repeatable.  [default: IP addresses, localhost, .local names, this machine's name]",
    ),
    click.option(
        "--root-path",
        default="",
        metavar="PATH",
        help="Path prefix under which a reverse proxy serves this server, such as /speech.  [default: none]",
    ),
    click.option(
        "--trusted-proxy",
        multiple=True,
        metavar="ADDRESS",
        help="Address or network of a reverse proxy whose X-Forwarded-* and X-Request-Id headers count; repeatable.  "
        "[default: none]",
    ),
    click.option(
        "--ssl-certfile",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        metavar="FILE",
        help="Serve HTTPS with this certificate (PEM).  [default: HTTP]",
    ),
    click.option(
        "--ssl-keyfile",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        metavar="FILE",
        help="Private key of the certificate (PEM).  [default: in the certificate's file]",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Format of the log on standard error.",
    ),
    click.option("--remote-references", is_flag=True, help="Allow ref_audio URLs; only public addresses are fetched."),
    click.option(
        "--allowed-media-domain",
        multiple=True,
        metavar="DOMAIN",
        help="Allow ref_audio URLs, but only of this domain and its subdomains; repeatable.  [default: none]",
    ),
    click.option(
        "--text-characters",
        default=_DEFAULTS.text_characters,
        show_default=True,
        type=click.IntRange(1),
        help="Maximum length of the text of a request, in characters.",
    ),
    click.option(
        "--request-s",
        default=_DEFAULTS.request_s,
        show_default=True,
        type=click.FloatRange(1),
        help="Request timeout in seconds.",
    ),
    click.option(
        "--text-s",
        default=_DEFAULTS.text_s,
        show_default=True,
        type=click.FloatRange(0, min_open=True),
        help="Seconds without text after which an utterance that waits for it fails.",
    ),
    click.option(
        "--socket-s",
        default=_DEFAULTS.socket_s,
        show_default=True,
        type=click.FloatRange(1),
        help="Age in seconds at which a socket is closed, as soon as it is idle.",
    ),
    click.option(
        "--client-streams",
        default=_DEFAULTS.client_streams,
        show_default=True,
        type=click.IntRange(1),
        help="Streams of one client (its key or address) at the same time; more are refused.",
    ),
    click.option(
        "--socket-utterances",
        default=_DEFAULTS.socket_utterances,
        show_default=True,
        type=click.IntRange(1),
        help="Utterances of one socket that have not ended; more are refused.",
    ),
    click.option(
        "--drain-s",
        default=_DEFAULTS.drain_s,
        show_default=True,
        type=click.FloatRange(1),
        help="Seconds that active streams may take to finish after SIGTERM.",
    ),
    click.option(
        "--watchdog-s",
        default=_DEFAULTS.watchdog_s,
        show_default=True,
        type=click.FloatRange(0),
        help="Exit with code 70 if the engine is stuck or dead for this many seconds; 0 never does.",
    ),
    click.option(
        "--wyoming",
        default=-1,
        type=click.IntRange(-1, 65535),
        is_flag=False,
        flag_value=10200,
        metavar="[PORT]",
        help="Also serve the Wyoming protocol (Home Assistant), without authentication; PORT defaults to 10200.  "
        "[default: off]",
    ),
    click.option(
        "--wyoming-host",
        default=_DEFAULTS.wyoming_host,
        show_default=True,
        metavar="ADDRESS",
        help="Address of the Wyoming protocol, which has no keys: every machine that can reach it can use it.",
    ),
)

serve_options = option_group("options", ServeOptions, _OPTIONS)
"""Adds all options above; the command receives them as `options`."""
