"""Pydantic models of request and error bodies.

Unknown fields are ignored and listed in a response header (they are in `model_extra`). Known fields are validated; a
wrong type or value is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from legato.server.errors import ApiError, shortened

MAX_NAME = 256
"""Characters of names: voices, models, languages, formats."""
RATES_HZ = (8_000, 12_000, 16_000, 22_050, 24_000, 44_100, 48_000)


class VoiceId(BaseModel):
    """Reference to a custom voice, in OpenAI's format."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(max_length=MAX_NAME)


def _unwrap_single_item(value: object) -> object:
    """Accept a list with one recording: some clients send `references` as a list."""
    if isinstance(value, list):
        if len(value) != 1:
            raise ValueError(f"send one reference recording, not {len(value)}")
        return value[0]
    return value


class SpeechOptions(BaseModel):
    """Options shared by all protocols. Every field is optional."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    voice: Annotated[str, Field(max_length=MAX_NAME)] | VoiceId = Field(
        default="",
        validation_alias=AliasChoices("voice", "speaker"),
        description="A built-in voice, an uploaded voice, or one of OpenAI's voice names. Alias: speaker.",
    )
    task_type: Literal["CustomVoice", "VoiceDesign", "Base", ""] = Field(
        default="", description="The kind of model that the client expects; an error if another kind is loaded."
    )
    language: str = Field(default="auto", max_length=MAX_NAME, description="`Auto` or one of the model's languages.")
    instructions: str = Field(
        default="", max_length=4000, description="Speaking style, or a description of the voice to design."
    )
    ref_audio: Annotated[str, BeforeValidator(_unwrap_single_item)] = Field(
        default="",
        validation_alias=AliasChoices("ref_audio", "references"),
        description="Reference recording to clone: base64, a data URL, or (if the server allows it) a URL.",
    )
    ref_text: str = Field(default="", max_length=4000, description="Transcript of the recording.")
    x_vector_only_mode: bool = Field(default=False, description="Clone from the speaker vector only.")
    speed: float = Field(
        default=1.0, ge=0.25, le=4.0, description="Speaking rate; an error if the model does not support it."
    )
    seed: int = Field(default=0, ge=0, lt=2**64)
    max_new_tokens: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Maximum number of frames (80 ms each); 0: a budget scaled to the text.",
    )
    temperature: float | None = Field(default=None, ge=0, le=10)
    top_k: int | None = Field(default=None, ge=0, le=1_000_000)
    top_p: float | None = Field(default=None, gt=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=0.1, le=10)
    predictor_temperature: float | None = Field(
        default=None, ge=0, le=10, validation_alias=AliasChoices("predictor_temperature", "subtalker_temperature")
    )
    predictor_top_k: int | None = Field(
        default=None, ge=0, le=1_000_000, validation_alias=AliasChoices("predictor_top_k", "subtalker_top_k")
    )
    predictor_top_p: float | None = Field(
        default=None, gt=0, le=1, validation_alias=AliasChoices("predictor_top_p", "subtalker_top_p")
    )
    packet_frames: Annotated[list[Annotated[int, Field(ge=1, le=250)]], Field(min_length=1, max_length=16)] | None = (
        Field(
            default=None,
            description="Frames of the first, second, ... packet; the last repeats. Default: playback without gaps.",
        )
    )
    first_packet_frames: int | None = Field(
        default=None,
        ge=0,
        le=250,
        validation_alias=AliasChoices("first_packet_frames", "initial_codec_chunk_frames"),
        description="Frames of the first packet; 0: no gaps in playback. Alias: initial_codec_chunk_frames.",
    )
    non_streaming_mode: bool | None = Field(
        default=None, description="true: all text before the first frame; false: one token per frame."
    )
    word_timestamps: bool = Field(
        default=False, description="Send word timestamps as events; an error if the model has none."
    )
    sample_rate: int | None = Field(default=None, description=f"Resample to one of {RATES_HZ} Hz.")


class SpeechRequestBody(SpeechOptions):
    """The body of `POST /v1/audio/speech`."""

    model: str = Field(
        default="", max_length=MAX_NAME, description="The loaded model's id, or one of OpenAI's model names."
    )
    input: str = Field(description="The text to speak.")
    response_format: str = Field(
        default="mp3", max_length=MAX_NAME, description="mp3, opus, aac, flac, wav or pcm (s16le)."
    )
    stream_format: Literal["audio", "sse"] | None = Field(
        default=None, description="audio: encoded bytes; sse: server-sent events."
    )
    stream: bool | None = Field(
        default=None,
        description="false: return the complete file, with exact sizes. true without stream_format: events.",
    )


class SpeechRequestForm(SpeechRequestBody):
    """The same body as form fields, where numbers and booleans are strings and `ref_audio` may be an uploaded file."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), strict=False)


def body_schema(*, form: bool) -> dict[str, object]:
    """The body's JSON schema for OpenAPI, with all `$ref` inlined. In a form, `ref_audio` may be a file."""
    schema = SpeechRequestBody.model_json_schema()
    definitions = schema.pop("$defs", {})
    properties = schema["properties"]
    for field in properties.values():
        options = field.get("anyOf", [])
        options[:] = [
            definitions[option["$ref"].rpartition("/")[2]] if "$ref" in option else option for option in options
        ]
    if form:
        properties["ref_audio"]["format"] = "binary"
    return schema


def query_parameters() -> list[dict[str, object]]:
    """The fields as OpenAPI parameters of a query, except recordings, which are too long for a URL."""
    schema = body_schema(form=False)
    required, properties = schema["required"], schema["properties"]
    assert isinstance(required, list)
    assert isinstance(properties, dict)
    return [
        {"name": name, "in": "query", "required": name in required, "schema": field}
        for name, field in properties.items()
        if name != "ref_audio"
    ]


class ErrorDetail(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: ErrorDetail


def parse_speech_request(fields: Mapping[str, object], *, form: bool) -> SpeechRequestBody:
    """Validate the body. Raises `ApiError` 400 that names the first invalid field."""
    try:
        if form:
            return SpeechRequestForm.model_validate(dict(fields))
        return SpeechRequestBody.model_validate(dict(fields), strict=True)
    except ValidationError as error:
        raise first_validation_error(error) from error


def first_validation_error(error: ValidationError) -> ApiError:
    """Pydantic's first error as an API error."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # Pydantic adds validator and union member names to the location; only field names are meaningful to clients.
    location = [str(part) for part in first["loc"] if not str(part).startswith(("function-", "VoiceId"))]
    field = shortened(location[0], 80) if location else ""
    if first["type"] == "missing":
        return ApiError(400, "invalid_request", f"the required field {field} is missing", param=field)
    return ApiError(400, "invalid_request", f"{field or 'body'}: {first['msg']}", param=field)
