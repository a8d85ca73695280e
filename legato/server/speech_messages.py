"""The messages of `/v1/audio/speech/stream`: JSON text frames, and binary frames that hold audio alone. Values only.

The dialect of vllm-omni and sglang-omni, plus `input.cancel`, `playback.ack` and word times. An *utterance* is what one
`input.done` (or `input.commit`) closes; utterances are numbered from 0 on one socket and are heard in order, without a
gap. With `split_granularity` "none" (the default) its text goes into one generation as it comes, with one
`audio.start`/`audio.done` pair; with "sentence" or "clause" each piece is generated for itself and has its own pair.

Client -> server
  {"type":"session.config", ...}             settings of the utterances that follow; may come again between utterances
  {"type":"input.text","text":"Hel"}         more text of the open utterance; opens one if none is open.
                                             "replace":true first cancels all that plays or waits (speak over)
  {"type":"input.commit"}                    closes the open utterance -> input.committed
  {"type":"input.done"}                      the same without an answer; session.done follows the utterance's audio
  {"type":"input.cancel"}                    barge-in: all that plays, waits or is written stops -> input.cancelled
                                             optional: "utterance_index":2,"played_through_sample":48000
  {"type":"playback.ack","utterance_index":0,"played_through_sample":48000}
  {"type":"session.close"}                   finish what is there, then close

Server -> client
  {"type":"session.configured","session_id":"..","voice":"..","format":"pcm","sample_rate":24000,"channels":1,
   "word_times":"exact"|"none","ignored":["field",..]}
  {"type":"input.committed","utterance_index":0}
  {"type":"audio.start","utterance_index":0,"sentence_index":0,"sentence_text":"..","format":"pcm","sample_rate":24000}
  binary frame: audio of the utterance and sentence that started last (audio_transport "binary"), or
  {"type":"audio.chunk","utterance_index":0,"sentence_index":0,"first_sample":0,"samples":1920,"audio_b64":".."}
  {"type":"audio.timestamps","utterance_index":0,"sentence_index":0,
   "words":[{"text":"Hello","text_start":0,"text_end":5,"start_s":0.16,"end_s":0.44}]}
  {"type":"audio.done","utterance_index":0,"sentence_index":0,"samples":48000,"total_bytes":96000,
   "finish_reason":"eos","timing":{"input wait":0.01,..},"error":false}
  {"type":"session.done","utterance_index":0,"total_sentences":1}
  {"type":"input.cancelled","utterances":[{"utterance_index":0,"sentence_index":0,"sent_samples":48000,
   "played_samples":31200,"played_by":"acknowledged"|"clock","heard_text":"Hello wor","heard_chars":9,
   "heard_by":"words"|"estimate"|"all","heard_error_chars":0,"sample_rate":24000}]}
  {"type":"error","code":"invalid_request","message":"..","field":"..","utterance_index":0?}

What the client has to know: binary frames between `audio.start` n and its `audio.done` (or `input.cancelled`) belong to
n. After sending `input.cancel`, drop all audio until `input.cancelled` comes; everything after it is new. Samples count
from 0 in each utterance and sentence, at the rate of `audio.start`. `played_*` counts what the client said with
`playback.ack`, else what a clock says that started with the first packet sent and stands still in gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, ValidationError

from legato.server.fields import Fields
from legato.server.schemas import SpeechOptions, first_fault

MAX_MESSAGE_BYTES = 4 * 2**20
"""One frame, as in vllm-omni: a reference recording fits as base64."""
MAX_TEXT_CHARS = 128 * 2**10
"""Text of one `input.text`."""


class SessionConfig(SpeechOptions):
    """`session.config`: how to speak, as on the other routes, and how this socket carries it. All may be left out."""

    type: str = "session.config"
    model: str = Field(default="", description="The loaded model's id, or one of OpenAI's names.")
    response_format: str = Field(default="pcm", description="pcm (s16le), wav, mp3, opus, aac or flac.")
    stream_audio: Literal[True] = Field(default=True, description="Audio is always sent while it is made.")
    split_granularity: Literal["none", "sentence", "clause"] = Field(
        default="none", description="none: one generation for an utterance; else one for each sentence or clause."
    )
    audio_transport: Literal["binary", "base64"] = Field(default="binary", description="Binary frames, or audio.chunk.")
    buffer_ms: int = Field(default=10_000, ge=320, le=600_000, description="How far to generate ahead of the ear.")
    lead_ms: int = Field(default=0, ge=0, le=600_000, description="Most unheard audio at the client; 0: all there is.")
    start_ms: int = Field(default=0, ge=0, le=10_000, description="What the client collects before it plays.")


@dataclass(frozen=True, slots=True)
class InputText:
    """`input.text`. `replace`: stop what plays or waits, and speak this instead."""

    text: str
    replace: bool


@dataclass(frozen=True, slots=True)
class InputCommit:
    """`input.commit`: the open utterance has all its text; answered."""


@dataclass(frozen=True, slots=True)
class InputDone:
    """`input.done`: the open utterance has all its text."""


@dataclass(frozen=True, slots=True)
class PlayedThrough:
    """`playback.ack`: the client's device has played `samples` of an utterance (of its sentence `sentence`)."""

    utterance: int
    sentence: int
    samples: int


@dataclass(frozen=True, slots=True)
class InputCancel:
    """`input.cancel`, with what the client knows about its playback, if it says so."""

    played: tuple[PlayedThrough, ...]


@dataclass(frozen=True, slots=True)
class SessionClose:
    """`session.close`: finish what is there, then close."""


ClientMessage = SessionConfig | InputText | InputCommit | InputDone | InputCancel | PlayedThrough | SessionClose

TYPES = (
    *("session.config", "input.text", "input.commit", "input.done"),
    *("input.cancel", "playback.ack", "session.close"),
)


def parse(fields: Fields) -> ClientMessage:
    """The message that a frame holds; `InputError` naming the field that is wrong."""
    match fields.choice("type", TYPES, "(none)"):
        case "session.config":
            return parse_config(fields)
        case "input.text":
            return InputText(fields.text("text", limit=MAX_TEXT_CHARS), fields.flag("replace"))
        case "input.commit":
            return InputCommit()
        case "input.done":
            return InputDone()
        case "input.cancel":
            return InputCancel((_played(fields),) if fields.has("played_through_sample") else ())
        case "playback.ack":
            return _played(fields)
        case _:
            return SessionClose()


def _played(fields: Fields) -> PlayedThrough:
    return PlayedThrough(
        utterance=fields.integer("utterance_index", 0, low=0, high=2**31),
        sentence=fields.integer("sentence_index", 0, low=0, high=2**31),
        samples=fields.integer("played_through_sample", 0, low=0, high=2**53),
    )


def parse_config(fields: Fields) -> SessionConfig:
    """`session.config`, checked; `ApiError` naming the first field at fault."""
    try:
        return SessionConfig.model_validate(fields.values, strict=True)
    except ValidationError as error:
        raise first_fault(error) from error
