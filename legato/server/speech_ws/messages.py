"""Messages of `/v1/audio/speech/stream`: JSON text frames, and binary frames that contain only audio.

The protocol of vllm-omni and sglang-omni, extended by `input.cancel`, `playback.ack` and word times. An *utterance* is
the text that one `input.done` (or `input.commit`) closes. Utterances are numbered from 0 on each socket and play in
order without a gap. With `split_granularity` "none" (default) the text of an utterance is streamed into one generation,
with one `audio.start`/`audio.done` pair. With "sentence" or "clause" each piece is a generation of its own, with a pair
of its own.

Client -> server
  {"type":"session.config", ...}             settings of the utterances that follow; allowed between utterances
  {"type":"input.text","text":"Hel"}         appends text to the open utterance, or opens one.
                                             "replace":true first cancels everything that plays or is queued
  {"type":"input.commit"}                    closes the open utterance -> input.committed
  {"type":"input.done"}                      the same without an answer; session.done follows the utterance's audio.
                                             Without text: an empty utterance, for clients that keep a socket alive
  {"type":"input.cancel"}                    barge-in: stops everything playing, queued or open -> input.cancelled
                                             optional: "utterance_index":2,"played_through_sample":48000
  {"type":"playback.ack","utterance_index":0,"played_through_sample":48000}
  {"type":"session.close"}                   sends the remaining audio, then closes

Server -> client
  {"type":"session.configured","session_id":"..","voice":"..","format":"pcm","sample_rate":24000,"channels":1,
   "word_times":"exact"|"none","ignored":["field",..]}
  {"type":"input.committed","utterance_index":0}
  {"type":"audio.start","utterance_index":0,"sentence_index":0,"sentence_text":"..","format":"pcm","sample_rate":24000}
  binary frame: audio of the sentence of the last audio.start (audio_transport "binary"), or
  {"type":"audio.chunk","utterance_index":0,"sentence_index":0,"first_sample":0,"samples":1920,"audio_b64":".."}
  {"type":"audio.timestamps","utterance_index":0,"sentence_index":0,
   "words":[{"text":"Hello","text_start":0,"text_end":5,"start_s":0.16,"end_s":0.44}]}
  {"type":"audio.done","utterance_index":0,"sentence_index":0,"samples":48000,"total_bytes":96000,
   "finish_reason":"eos","timing":{"input wait":0.01,..},"error":false,
   "timestamp_info":{"word_alignment":{"words":["Hello"],"word_start_times_seconds":[0.16],
                                       "word_end_times_seconds":[0.44]}}}      with "timestamp_type":"word"
  {"type":"session.done","utterance_index":0,"total_sentences":1}
  {"type":"input.cancelled","utterances":[{"utterance_index":0,"sentence_index":0,"sent_samples":48000,
   "played_samples":31200,"played_by":"acknowledged"|"clock","heard_text":"Hello wor","heard_chars":9,
   "heard_by":"words"|"estimate"|"all","heard_error_chars":0,"sample_rate":24000}]}
  {"type":"error","code":"invalid_request","message":"..","field":"..","utterance_index":0?}

Every utterance has one end, in order: `session.done`, or its place in `input.cancelled`. A sentence ends with
`audio.done`, an `error` with its numbers, or its place in `input.cancelled`.

Rules for clients: binary frames between an `audio.start` and its `audio.done` (or `input.cancelled`) belong to that
sentence. After `input.cancel`, drop all audio until `input.cancelled` arrives; everything after it is new. Samples
count from 0 in each sentence, at the rate of `audio.start`. `played_samples` is the last `playback.ack`, continued by a
clock; without acknowledgements the clock starts with the first packet sent. It pauses in underruns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, ValidationError

from legato.server.fields import Fields
from legato.server.openai.schemas import SpeechOptions, first_validation_error

MAX_MESSAGE_BYTES = 4 * 2**20
"""Largest text frame, as in vllm-omni: a base64 reference recording fits."""
MAX_TEXT_CHARS = 128 * 2**10
"""Longest text of one `input.text`."""


class SessionConfig(SpeechOptions):
    """`session.config`: the speech options of all routes, and the options of this protocol. All are optional."""

    type: str = "session.config"
    model: str = Field(default="", description="The loaded model's id, or one of OpenAI's names.")
    response_format: str = Field(default="pcm", description="pcm (s16le), wav, mp3, opus, aac or flac.")
    stream_audio: Literal[True] = Field(default=True, description="Audio is always streamed.")
    timestamp_type: Literal["word", "none"] = Field(
        default="none", description="word: the word times of a sentence are in its audio.done, where the model has any."
    )
    timestamp_transport_strategy: Literal["sync", "async"] = Field(
        default="sync", description="sync: word times in audio.done; async: in audio.timestamps as they become known."
    )
    split_granularity: Literal["none", "sentence", "clause"] = Field(
        default="none", description="none: one generation per utterance; else one per sentence or clause."
    )
    audio_transport: Literal["binary", "base64"] = Field(default="binary", description="Binary frames, or audio.chunk.")
    buffer_ms: int = Field(default=10_000, ge=320, le=600_000, description="How far to generate ahead of playback.")
    lead_ms: int = Field(default=0, ge=0, le=600_000, description="Limit of unplayed audio at the client; 0: none.")
    start_ms: int = Field(default=0, ge=0, le=10_000, description="What the client buffers before it plays.")


@dataclass(frozen=True, slots=True)
class InputText:
    """`input.text`. `replace`: first stop everything that plays or is queued."""

    text: str
    replace: bool


@dataclass(frozen=True, slots=True)
class InputCommit:
    """`input.commit`: the text of the open utterance is complete; answered."""


@dataclass(frozen=True, slots=True)
class InputDone:
    """`input.done`: the text of the open utterance is complete."""


@dataclass(frozen=True, slots=True)
class PlaybackPosition:
    """`playback.ack`: the client has played the first `samples` samples of a sentence."""

    utterance: int
    sentence: int
    samples: int


@dataclass(frozen=True, slots=True)
class InputCancel:
    """`input.cancel`, with the client's play position if it sends one."""

    position: PlaybackPosition | None


@dataclass(frozen=True, slots=True)
class SessionClose:
    """`session.close`: send the remaining audio, then close."""


ClientMessage = SessionConfig | InputText | InputCommit | InputDone | InputCancel | PlaybackPosition | SessionClose

TYPES = (
    "session.config",
    "input.text",
    "input.commit",
    "input.done",
    "input.cancel",
    "playback.ack",
    "session.close",
)


def parse(fields: Fields) -> ClientMessage:
    """Parse a message; `InputError` or `ApiError` naming the invalid field."""
    match fields.choice("type", TYPES, "(none)"):
        case "session.config":
            return _parse_config(fields)
        case "input.text":
            return InputText(fields.text("text", limit=MAX_TEXT_CHARS), fields.flag("replace"))
        case "input.commit":
            return InputCommit()
        case "input.done":
            return InputDone()
        case "input.cancel":
            return InputCancel(_position(fields) if fields.has("played_through_sample") else None)
        case "playback.ack":
            return _position(fields)
        case _:
            return SessionClose()


def _position(fields: Fields) -> PlaybackPosition:
    return PlaybackPosition(
        utterance=fields.integer("utterance_index", 0, low=0, high=2**31),
        sentence=fields.integer("sentence_index", 0, low=0, high=2**31),
        samples=fields.integer("played_through_sample", 0, low=0, high=2**53),
    )


def _parse_config(fields: Fields) -> SessionConfig:
    """Validate `session.config`; `ApiError` naming the first invalid field."""
    try:
        return SessionConfig.model_validate(fields.values, strict=True)
    except ValidationError as error:
        raise first_validation_error(error) from error
