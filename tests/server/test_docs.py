"""`docs/server.md` says what is there: its commands parse, its bodies are taken, its table has every field and code."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from legato.cli.serve import serve
from legato.config.server import ServerConfig
from legato.server.schemas import SpeechBody, parse_speech

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")


def test_commands_parse() -> None:
    lines = re.findall(r"^(?:[A-Z_]+=\S+ )?legato serve(.*)$", PAGE, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        arguments = shlex.split(line.partition("#")[0])
        serve.make_context("serve", arguments)


def test_bodies_are_taken() -> None:
    bodies = re.findall(r"-d '(\{.*?\})'", PAGE)
    assert len(bodies) == 3
    for body in bodies:
        assert not parse_speech(json.loads(body), form=False).model_extra


def test_every_field_and_no_other_option_is_named() -> None:
    for field in SpeechBody.model_fields:
        assert re.search(rf"`{field}\b|`predictor_\*", PAGE) if field.startswith("predictor_") else f"`{field}`" in PAGE
    known = {name for parameter in serve.params for name in parameter.opts} | {"--help"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= known


def test_the_limits_are_those_in_force() -> None:
    config = ServerConfig()
    for words in (
        f"{config.text_characters:,} characters",
        f"{config.body_bytes // 2**20} MiB; {config.reference_bytes // 2**20} MiB",
        f"{config.request_s:.0f} s",
        f"{config.stall_s:.0f} s",
        f"{config.ahead_frames} frames",
        f"{config.voices:,}",
        f"{config.records:,} requests",
    ):
        assert words in PAGE, words
