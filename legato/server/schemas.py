"""The bodies of requests, as types with their limits. Owns no state; knows no engine.

A field that is not here is ignored, and its name is told in a response header (`model_extra` holds it). A field that is
here has the right type and a possible value, or the request is refused.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from legato.server.errors import ApiError

RATES_HZ = (8_000, 12_000, 16_000, 22_050, 24_000, 44_100, 48_000)


class VoiceId(BaseModel):
    """A voice as OpenAI writes a custom one."""

    model_config = ConfigDict(extra="forbid")

    id: str


def _one_of_a_list(value: object) -> object:
    """Some clients send a list of references; one is what a clone is made of."""
    if isinstance(value, list):
        if len(value) != 1:
            raise ValueError(f"give one reference recording, not {len(value)}")
        return value[0]
    return value


class SpeechOptions(BaseModel):
    """How to speak: what all routes have in common. Every field may be left out."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    voice: str | VoiceId = Field(
        default="",
        validation_alias=AliasChoices("voice", "speaker"),
        description="A voice of the model, an uploaded voice, or one of OpenAI's names. Alias: speaker.",
    )
    task_type: Literal["CustomVoice", "VoiceDesign", "Base", ""] = Field(
        default="", description="The kind of model that the client expects; refused if another one is loaded."
    )
    language: str = Field(default="auto", description="`Auto` or one of the model's languages.")
    instructions: str = Field(default="", max_length=4000, description="How to speak, or the voice to design.")
    ref_audio: Annotated[str, BeforeValidator(_one_of_a_list)] = Field(
        default="",
        validation_alias=AliasChoices("ref_audio", "references"),
        description="Recording to clone: base64, a data URL, or (where the server allows it) a URL.",
    )
    ref_text: str = Field(default="", max_length=4000, description="What is said in the recording.")
    x_vector_only_mode: bool = Field(default=False, description="Clone from the speaker vector alone.")
    speed: float = Field(default=1.0, ge=0.25, le=4.0, description="Tempo; refused by models that cannot change it.")
    seed: int = Field(default=0, ge=0, lt=2**64)
    max_new_tokens: int = Field(
        default=0, ge=0, le=1_000_000, description="Most frames of 80 ms; 0: as the text needs."
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
        Field(default=None, description="Frames of the first, second, ... packet; the last number goes on.")
    )
    first_packet_frames: int | None = Field(
        default=None,
        ge=0,
        le=250,
        validation_alias=AliasChoices("first_packet_frames", "initial_codec_chunk_frames"),
        description="Frames of the first packet; 0: the default. Alias: initial_codec_chunk_frames.",
    )
    non_streaming_mode: bool | None = Field(default=None, description="All text before the first frame, or one by one.")
    word_timestamps: bool = Field(
        default=False, description="Tell when each word is said, in events; refused where the model does not know."
    )
    sample_rate: int | None = Field(default=None, description=f"Resample to one of {RATES_HZ} Hz.")


class SpeechBody(SpeechOptions):
    """The body of `POST /v1/audio/speech`."""

    model: str = Field(default="", description="The loaded model's id, or one of OpenAI's names.")
    input: str = Field(description="The text to speak.")
    response_format: str = Field(default="mp3", description="mp3, opus, aac, flac, wav or pcm (s16le).")
    stream_format: Literal["audio", "sse"] | None = Field(default=None, description="Bytes of the format, or events.")
    stream: bool | None = Field(
        default=None,
        description="false: answer with the whole file, its sizes exact. true without stream_format: events.",
    )


class SpeechForm(SpeechBody):
    """The same as form fields, with `ref_audio` as an uploaded file; numbers and booleans are text there."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), strict=False)


def body_schema(*, form: bool) -> dict[str, object]:
    """The JSON schema of a body, without references; in a form the recording may be a file."""
    schema = SpeechBody.model_json_schema()
    definitions = schema.pop("$defs", {})
    properties = schema["properties"]
    for field in properties.values():
        options = field.get("anyOf", [])
        options[:] = [definitions[each["$ref"].rpartition("/")[2]] if "$ref" in each else each for each in options]
    if form:
        properties["ref_audio"]["format"] = "binary"
    return schema


class ErrorDetail(BaseModel):
    """OpenAI's error."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """What every refusal looks like."""

    error: ErrorDetail


def parse_speech(fields: object, *, form: bool) -> SpeechBody:
    """The checked body; `ApiError` 400 naming the first field at fault."""
    if not isinstance(fields, dict):
        raise ApiError(400, "invalid_request", "the body must be a JSON object with the fields model, input and voice")
    try:
        return SpeechForm.model_validate(fields) if form else SpeechBody.model_validate(fields, strict=True)
    except ValidationError as error:
        raise first_fault(error) from error


def first_fault(error: ValidationError) -> ApiError:
    """The first of pydantic's complaints, in our shape."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = [str(part) for part in first["loc"] if not str(part).startswith(("function-", "VoiceId"))]
    field = where[0] if where else ""
    if first["type"] == "missing":
        return ApiError(400, "invalid_request", f"{field} is missing, and there is no default for it", param=field)
    return ApiError(400, "invalid_request", f"{field or 'body'}: {first['msg']}", param=field)
