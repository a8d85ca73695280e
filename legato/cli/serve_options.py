"""Options of `legato serve`, and the server's settings made of them. Owns nothing and imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TypeVar

import click

from legato.config.server import KEY_VARIABLE, OPENAI_MODELS, ServerConfig, default_voices_folder, key_from_environment

_DEFAULTS = ServerConfig()
_Decorated = TypeVar("_Decorated", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the command line said, apart from the model."""

    host: str
    port: int
    api_key: str
    name: str
    voices: Path | None
    no_voices: bool
    voice_alias: tuple[str, ...]
    cors_origin: tuple[str, ...]
    remote_references: bool
    text_characters: int
    request_s: float
    drain_s: float
    wyoming: int

    def config(self, model: str) -> ServerConfig:
        """The server's settings for `model`."""
        return ServerConfig(
            host=self.host,
            port=self.port,
            model_id=self.name or model,
            api_key=self.api_key or key_from_environment(),
            model_aliases=OPENAI_MODELS,
            voice_aliases=dict(_pair(each) for each in self.voice_alias),
            voices_folder=None if self.no_voices else self.voices or default_voices_folder(),
            cors_origins=self.cors_origin,
            remote_references=self.remote_references,
            text_characters=self.text_characters,
            request_s=self.request_s,
            drain_s=self.drain_s,
            wyoming_port=self.wyoming,
        )


def _pair(alias: str) -> tuple[str, str]:
    name, equals, target = alias.partition("=")
    if not (name.strip() and equals and target.strip()):
        raise click.UsageError(f"--voice-alias is NAME=VOICE, not {alias!r}")
    return name.strip().lower(), target.strip()


_OPTIONS = (
    click.option("--host", default=_DEFAULTS.host, show_default=True, help="Address to listen on; 0.0.0.0 for all."),
    click.option("--port", default=_DEFAULTS.port, show_default=True, type=click.IntRange(0, 65535), help="0: any."),
    click.option("--api-key", default="", metavar="KEY", help=f"Ask clients for it; better given as {KEY_VARIABLE}."),
    click.option("--name", default="", metavar="ID", help="What /v1/models calls the model.  [default: MODEL]"),
    click.option("--voices", type=click.Path(path_type=Path, file_okay=False), help="Folder of uploaded voices."),
    click.option("--no-voices", is_flag=True, help="Keep no uploaded voices."),
    click.option("--voice-alias", multiple=True, metavar="NAME=VOICE", help="Another name of a voice; repeatable."),
    click.option("--cors-origin", multiple=True, metavar="ORIGIN", help="A web origin that may call; repeatable."),
    click.option("--remote-references", is_flag=True, help="Fetch ref_audio URLs (public addresses only)."),
    click.option(
        "--text-characters",
        default=_DEFAULTS.text_characters,
        show_default=True,
        type=click.IntRange(1),
        help="Longest text of a request.",
    ),
    click.option(
        "--request-s",
        default=_DEFAULTS.request_s,
        show_default=True,
        type=click.FloatRange(1),
        help="Longest time of a request.",
    ),
    click.option(
        "--drain-s",
        default=_DEFAULTS.drain_s,
        show_default=True,
        type=click.FloatRange(1),
        help="How long streams may go on after SIGTERM.",
    ),
    click.option(
        "--wyoming",
        default=_DEFAULTS.wyoming_port,
        type=click.IntRange(-1, 65535),
        is_flag=False,
        flag_value=10200,
        metavar="[PORT]",
        help="Speak Wyoming too, for Home Assistant (no key!); port 10200 unless given.",
    ),
)


def serve_options(function: _Decorated) -> Callable[..., object]:
    """All of them, handed over as one `options`."""

    @wraps(function)
    def wrapped(*arguments: object, **given: object) -> object:
        own = {name: given.pop(name) for name in ServeOptions.__dataclass_fields__}
        return function(*arguments, options=ServeOptions(**own), **given)  # type: ignore[arg-type]

    decorated: Callable[..., object] = wrapped
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
