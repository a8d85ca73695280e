"""`docs/server.md` is up to date: commands parse, bodies are valid, all fields, options and limits are documented."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from legato.cli.serve import serve
from legato.config.server import ServerConfig
from legato.server.openai.batch_schema import parse_batch
from legato.server.openai.schemas import SpeechRequestBody, parse_speech_request

PAGE = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")


def test_documented_commands_parse() -> None:
    lines = re.findall(r"^(?:[A-Z_]+=\S+ )?legato serve(.*)$", PAGE, re.MULTILINE)
    assert len(lines) == 5
    for line in lines:
        arguments = shlex.split(line.partition("#")[0])
        serve.make_context("serve", arguments)


def test_documented_bodies_are_valid() -> None:
    bodies = re.findall(r"-d '(\{.*?\})'", PAGE)
    assert len(bodies) == 4
    for body in map(json.loads, bodies):
        requests = (
            [item.request() for item in parse_batch(body, "")[0]]
            if "items" in body
            else [parse_speech_request(body, form=False)]
        )
        assert not any(request.model_extra for request in requests)


def test_all_fields_are_documented_and_all_options_exist() -> None:
    for field in SpeechRequestBody.model_fields:
        assert re.search(rf"`{field}\b|`predictor_\*", PAGE) if field.startswith("predictor_") else f"`{field}`" in PAGE
    known = {name for parameter in serve.params for name in parameter.opts} | {"--help"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= known


def test_documented_limits_match_the_defaults() -> None:
    config = ServerConfig()
    for text in (
        f"{config.text_characters:,} characters",
        f"{config.body_bytes // 2**20} MiB; {config.reference_bytes // 2**20} MiB",
        f"{config.request_s:.0f} s",
        f"{config.stall_s:.0f} s",
        f"{config.ahead_frames} frames",
        f"{config.voices:,}",
        f"{config.records:,} requests",
    ):
        assert text in PAGE, text
