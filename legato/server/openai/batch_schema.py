"""Pydantic model of `POST /v1/audio/speech/batch`: options for all items, and the items with their own.

An item is a text, or an object with `input` and every option of `POST /v1/audio/speech`; it takes precedence over the
options of the batch. Items are validated one by one, so that one that is invalid fails alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from legato.server.errors import ApiError
from legato.server.openai.schemas import (
    MAX_NAME,
    SpeechRequestBody,
    body_schema,
    first_validation_error,
    parse_speech_request,
)

MAX_ITEMS = 1000
Output = Literal["jsonl", "json", "sse", "zip"]
MEDIA_TYPES: dict[str, Output] = {
    "application/x-ndjson": "jsonl",
    "application/jsonl": "jsonl",
    "application/json": "json",
    "text/event-stream": "sse",
    "application/zip": "zip",
}
"""Media type -> form of the response, for `Accept`."""


class BatchBody(BaseModel):
    """The body, besides the options for all items, which are those of `POST /v1/audio/speech`."""

    model_config = ConfigDict(extra="allow")

    items: Annotated[list[str | dict[str, object]], Field(min_length=1, max_length=MAX_ITEMS)] = Field(
        validation_alias=AliasChoices("items", "inputs"),
        description="Texts, or objects with input, an optional id, and options of their own. Alias: inputs.",
    )
    output: Output | None = Field(
        default=None,
        description="jsonl: a JSON line for each result, as they are ready; json: one JSON object at the end; sse: "
        "events with progress; zip: files. Default: from the header Accept, else jsonl.",
    )


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One item. `id`: the client's name for it. `fields`: the body of its request."""

    index: int
    id: str
    fields: Mapping[str, object]

    @property
    def characters(self) -> int:
        """Length of the text; 0 if there is none."""
        text = self.fields.get("input")
        return len(text) if isinstance(text, str) else 0

    @property
    def file_stem(self) -> str:
        """Name of its file in an archive, without the extension; unique, and safe on every system."""
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", self.id).strip("-")[:64]
        return f"{self.index:04d}-{name}" if name else f"{self.index:04d}"

    def request(self) -> SpeechRequestBody:
        """The validated request. `ApiError` 400 that names the first invalid field."""
        return parse_speech_request({**self.fields, "stream": False, "stream_format": None}, form=False)


def parse_batch(fields: Mapping[str, object], accept: str) -> tuple[list[BatchItem], Output]:
    """The items, and the form of the response. `ApiError` 400 for a batch that is malformed as a whole."""
    try:
        body = BatchBody.model_validate(dict(fields), strict=True)
    except ValidationError as error:
        raise _batch_error(error) from error
    shared = {
        name: value for name, value in (body.model_extra or {}).items() if name not in ("stream", "stream_format")
    }
    items: list[BatchItem] = []
    for index, item in enumerate(body.items):
        own = {"input": item} if isinstance(item, str) else {n: v for n, v in item.items() if v is not None}
        name = own.pop("id", "")
        if not isinstance(name, str | int) or len(str(name)) > MAX_NAME:
            raise ApiError(
                400,
                "invalid_request",
                f"items.{index}.id must be a string of at most {MAX_NAME} characters",
                param="items",
            )
        items.append(BatchItem(index, str(name), {**shared, **own}))
    return items, body.output or _accepted(accept)


def batch_schema() -> dict[str, object]:
    """JSON schema of the body for OpenAPI."""
    schema = BatchBody.model_json_schema()
    shared = body_schema(form=False)["properties"]
    assert isinstance(shared, dict)
    hidden = ("input", "stream", "stream_format")
    schema["properties"] |= {name: field for name, field in shared.items() if name not in hidden}
    return schema


def _accepted(accept: str) -> Output:
    for part in accept.split(","):
        output = MEDIA_TYPES.get(part.partition(";")[0].strip().lower())
        if output is not None:
            return output
    return "jsonl"


def _batch_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if len(first["loc"]) > 1 and isinstance(first["loc"][1], int):
        return ApiError(
            400, "invalid_request", f"items.{first['loc'][1]} must be a text or an object with input", param="items"
        )
    return first_validation_error(error)
