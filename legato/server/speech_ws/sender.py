"""Server messages of `/v1/audio/speech/stream`: turns session outputs into JSON messages and audio frames.

A `SpeechSender` belongs to one connection. It maps the session's utterances to the utterance and sentence numbers of
the protocol, and owns the encoder of the sentence that is being sent.
"""

from __future__ import annotations

import base64
from collections import deque
from dataclasses import dataclass

from legato.audio.formats import AudioFormat
from legato.server.errors import ApiError, api_error
from legato.server.fields import to_json
from legato.server.session_json import convert_samples, interruption_json, words_json
from legato.server.session_runner import SessionRunner
from legato.server.speech_ws.messages import PlaybackPosition, SessionConfig
from legato.server.state import ServerState
from legato.server.utterance_encoder import UtteranceEncoder
from legato.server.websocket import SocketSender
from legato.session.events import (
    AudioEnd,
    AudioPacket,
    AudioStart,
    Cancelled,
    InterruptionReport,
    PlaybackAck,
    PlaybackFinished,
    SessionOutput,
    UtteranceFailed,
    UtteranceId,
)
from legato.types import FinishReason, Packet

WORDS_ASYNC = ("word", "async")
"""The other spelling of `word_timestamps`."""


@dataclass(slots=True)
class WireUtterance:
    """An utterance of the protocol: what one `input.done` closes. With `split_granularity` it has several sentences,
    and each is an utterance of the session."""

    number: int
    config: SessionConfig
    audio_format: AudioFormat
    rate_hz: int
    sentences: int = 0
    """Sentences begun."""
    ended_sentences: int = 0
    """Sentences sent or failed."""
    text_ended: bool = False
    text_cancelled: bool = False
    """The client has cancelled while the text was open. The text ends with `input.cancelled`."""
    cancelled: bool = False
    """Named in `input.cancelled`."""

    @property
    def over(self) -> bool:
        """True when nothing more is sent for this utterance, except its end."""
        return self.cancelled or (self.text_ended and self.ended_sentences == self.sentences)


@dataclass(slots=True)
class Sentence:
    """The utterance and sentence number of one session utterance."""

    utterance: WireUtterance
    number: int
    words_sent: int = 0
    chunked_samples: int = 0
    """Samples in the `audio.chunk` messages so far, at the output rate."""
    encoder: UtteranceEncoder | None = None
    """Set from `audio.start` to `audio.done`."""

    @property
    def indexes(self) -> dict[str, object]:
        """The fields that identify it in messages."""
        return {"utterance_index": self.utterance.number, "sentence_index": self.number}

    @property
    def active_encoder(self) -> UtteranceEncoder:
        """The encoder between `audio.start` and `audio.done`."""
        assert self.encoder is not None, "audio is sent between AudioStart and AudioEnd only"
        return self.encoder


class SpeechSender:
    """Sends all messages of one connection."""

    def __init__(self, state: ServerState, socket: SocketSender, session: SessionRunner) -> None:
        self._state = state
        self._socket = socket
        self._session = session
        self._model_hz = state.tts.sample_rate_hz
        self._sentences: dict[UtteranceId, Sentence] = {}
        self._utterances: deque[WireUtterance] = deque()
        """Utterances whose end is not reported, in order."""
        self._assigned = 0
        """Utterances of the session that are assigned, the first ones. Those that are over count."""

    def open(self, utterance: WireUtterance) -> None:
        """Add an utterance. It ends with `session.done`, or is named in `input.cancelled`, after all earlier ones."""
        self._utterances.append(utterance)

    def assign(self, utterance_id: UtteranceId, utterance: WireUtterance) -> None:
        """Make `utterance_id` the next sentence of `utterance`, unless it was assigned before.

        A sentence may end before its text does. The rest of its text is dropped and makes no new sentence.
        """
        if utterance_id >= self._assigned:
            self._sentences[utterance_id] = Sentence(utterance, utterance.sentences)
            self._assigned = utterance_id + 1
            utterance.sentences += 1

    def playback_ack(self, position: PlaybackPosition) -> PlaybackAck | None:
        """A client's play position as an event of the session; None if that sentence is over."""
        for utterance_id, sentence in self._sentences.items():
            if (sentence.utterance.number, sentence.number) == (position.utterance, position.sentence):
                rate_hz = sentence.utterance.rate_hz
                samples = convert_samples(position.samples, from_hz=rate_hz, to_hz=self._model_hz)
                return PlaybackAck(utterance_id, samples)
        return None

    # --- session outputs ----------------------------------------------------------------------------------------------

    async def send_output(self, output: SessionOutput) -> None:
        """Send one output of the session."""
        match output:
            case AudioStart(utterance_id=utterance_id):
                await self._send_start(utterance_id, self._sentences[utterance_id])
            case AudioPacket(utterance_id=utterance_id, packet=packet):
                await self._send_packet(utterance_id, self._sentences[utterance_id], packet)
            case AudioEnd(utterance_id=utterance_id, reason=reason):
                await self._send_end(utterance_id, self._sentences[utterance_id], reason)
            case PlaybackFinished(utterance_id=utterance_id):
                self._sentences.pop(utterance_id, None)
            case Cancelled(reports=reports):
                utterances = [self._report_json(report) for report in reports]
                await self.send({"type": "input.cancelled", "utterances": utterances})
                for report in reports:
                    self._sentences.pop(report.utterance_id).utterance.cancelled = True
                for utterance in self._utterances:
                    utterance.text_ended = utterance.text_ended or utterance.text_cancelled
                await self._send_ends()
            case UtteranceFailed(utterance_id=utterance_id, error=error):
                sentence = self._sentences.pop(utterance_id)
                await self.send_error(api_error(error), sentence.indexes)
                await self._end_sentence(sentence.utterance)

    async def _send_start(self, utterance_id: UtteranceId, sentence: Sentence) -> None:
        utterance = sentence.utterance
        sentence.encoder = UtteranceEncoder(utterance.audio_format, self._model_hz, utterance.rate_hz)
        record = self._session.record(utterance_id)
        await self.send(
            {
                "type": "audio.start",
                **sentence.indexes,
                "sentence_text": self._session.text(utterance_id),
                "format": utterance.audio_format.value,
                "sample_rate": utterance.rate_hz,
                "request_id": record.id,
                "timing": record.timings_json(),
                "notes": list(record.notes),
            }
        )

    async def _send_packet(self, utterance_id: UtteranceId, sentence: Sentence, packet: Packet) -> None:
        encoder = sentence.active_encoder
        data = await self._session.encode(encoder, encoder.encode, packet)
        await self._send_words(utterance_id, sentence)
        await self._send_audio(sentence, data)

    async def _send_end(self, utterance_id: UtteranceId, sentence: Sentence, reason: FinishReason) -> None:
        encoder = sentence.active_encoder
        data = await self._session.encode(encoder, encoder.finish)
        await self._send_words(utterance_id, sentence)
        await self._send_audio(sentence, data)
        await self.send(
            {
                "type": "audio.done",
                **sentence.indexes,
                "samples": encoder.samples,
                "total_bytes": encoder.sent_bytes,
                "finish_reason": reason.value,
                "timing": self._session.record(utterance_id).timings_json(),
                "error": False,
                **self._timestamp_info(utterance_id, sentence),
            }
        )
        sentence.encoder = None
        await self._end_sentence(sentence.utterance)

    async def _send_audio(self, sentence: Sentence, data: bytes) -> None:
        if not data:
            return
        if sentence.utterance.config.audio_transport == "binary":
            await self._socket.data(data)
            return
        first_sample, sentence.chunked_samples = sentence.chunked_samples, sentence.active_encoder.samples
        await self.send(
            {
                "type": "audio.chunk",
                **sentence.indexes,
                "first_sample": first_sample,
                "samples": sentence.chunked_samples - first_sample,
                "audio_b64": base64.b64encode(data).decode(),
            }
        )

    def _timestamp_info(self, utterance_id: UtteranceId, sentence: Sentence) -> dict[str, object]:
        """The words of a whole sentence for `audio.done`, if the client asked for them and the model has times."""
        config = sentence.utterance.config
        if config.timestamp_type == "none" or config.timestamp_transport_strategy == "async":
            return {}
        words = self._session.words(utterance_id)
        text = self._session.text(utterance_id)
        alignment = {
            "words": [text[word.text_start : word.text_end] for word in words],
            "word_start_times_seconds": [round(word.first_sample / self._model_hz, 4) for word in words],
            "word_end_times_seconds": [round(word.end_sample / self._model_hz, 4) for word in words],
        }
        return {"timestamp_info": {"word_alignment": alignment} if words else None}

    async def _send_words(self, utterance_id: UtteranceId, sentence: Sentence) -> None:
        """Send the words whose times became known since the last packet."""
        config = sentence.utterance.config
        if not config.word_timestamps and (config.timestamp_type, config.timestamp_transport_strategy) != WORDS_ASYNC:
            return
        new_words = self._session.words(utterance_id)[sentence.words_sent :]
        sentence.words_sent += len(new_words)
        words = words_json(new_words, self._session.text(utterance_id), self._model_hz)
        if words:
            await self.send({"type": "audio.timestamps", **sentence.indexes, "words": words})

    # --- end of an utterance ------------------------------------------------------------------------------------------

    async def _end_sentence(self, utterance: WireUtterance) -> None:
        utterance.ended_sentences += 1
        await self._send_ends()

    async def end_text(self, utterance: WireUtterance) -> None:
        """The text of `utterance` is complete."""
        utterance.text_ended = True
        await self._send_ends()

    async def _send_ends(self) -> None:
        """Send `session.done` for the utterances that are complete, in order.

        An utterance is complete when its text has ended and all its sentences are sent or failed. The end of a
        cancelled one is in `input.cancelled`.
        """
        while self._utterances and self._utterances[0].over:
            utterance = self._utterances.popleft()
            if not utterance.cancelled:
                message = {"utterance_index": utterance.number, "total_sentences": utterance.sentences}
                await self.send({"type": "session.done", **message})

    def _report_json(self, report: InterruptionReport) -> dict[str, object]:
        sentence = self._sentences[report.utterance_id]
        report_json = interruption_json(
            report,
            self._session.heard_text(report),
            self._session.text(report.utterance_id),
            model_hz=self._model_hz,
            rate_hz=sentence.utterance.rate_hz,
        )
        return {**sentence.indexes, **report_json}

    # --- messages -----------------------------------------------------------------------------------------------------

    async def send_error(self, error: ApiError, indexes: dict[str, object]) -> None:
        """Send an error. `indexes`: the utterance and sentence it ended; empty if none."""
        message = {"type": "error", "code": error.code, "message": str(error), "field": error.param}
        await self.send({**message, **indexes})

    async def send(self, message: dict[str, object]) -> None:
        """Send one message as a text frame."""
        await self._socket.text(to_json(message))
