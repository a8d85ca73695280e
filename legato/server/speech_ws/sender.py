"""Server messages of `/v1/audio/speech/stream`: turns session outputs into JSON messages and audio frames.

A `SpeechSender` belongs to one connection. It maps the session's utterances to the utterance and sentence numbers of
the protocol, and owns the encoder of the sentence that is being sent.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from legato.audio.formats import AudioFormat
from legato.server.errors import ApiError, api_error
from legato.server.fields import to_json
from legato.server.session_json import interruption_json, words_json
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
    cancelled: bool = False


@dataclass(slots=True)
class Sentence:
    """The utterance and sentence number of one session utterance."""

    utterance: WireUtterance
    number: int
    words_sent: int = 0
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

    def assign(self, utterance_id: UtteranceId, utterance: WireUtterance) -> None:
        """Make `utterance_id` the next sentence of `utterance`, unless it is assigned already."""
        if utterance_id not in self._sentences:
            self._sentences[utterance_id] = Sentence(utterance, utterance.sentences)
            utterance.sentences += 1

    def playback_ack(self, position: PlaybackPosition) -> PlaybackAck | None:
        """A client's play position as an event of the session; None if that sentence is over."""
        for utterance_id, sentence in self._sentences.items():
            if (sentence.utterance.number, sentence.number) == (position.utterance, position.sentence):
                samples = round(position.samples * self._model_hz / sentence.utterance.rate_hz)
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
        first_sample = encoder.samples
        data = await self._session.encode(encoder, encoder.encode, packet)
        await self._send_words(utterance_id, sentence)
        await self._send_audio(sentence, data, first_sample)

    async def _send_end(self, utterance_id: UtteranceId, sentence: Sentence, reason: FinishReason) -> None:
        encoder = sentence.active_encoder
        first_sample = encoder.samples
        data = await self._session.encode(encoder, encoder.finish)
        await self._send_words(utterance_id, sentence)
        await self._send_audio(sentence, data, first_sample)
        await self.send(
            {
                "type": "audio.done",
                **sentence.indexes,
                "samples": encoder.samples,
                "total_bytes": encoder.sent_bytes,
                "finish_reason": reason.value,
                "timing": self._session.record(utterance_id).timings_json(),
                "error": False,
            }
        )
        sentence.encoder = None
        await self._end_sentence(sentence.utterance)

    async def _send_audio(self, sentence: Sentence, data: bytes, first_sample: int) -> None:
        if not data:
            return
        if sentence.utterance.config.audio_transport == "binary":
            await self._socket.data(data)
            return
        await self.send(
            {
                "type": "audio.chunk",
                **sentence.indexes,
                "first_sample": first_sample,
                "samples": sentence.active_encoder.samples - first_sample,
                "audio_b64": base64.b64encode(data).decode(),
            }
        )

    async def _send_words(self, utterance_id: UtteranceId, sentence: Sentence) -> None:
        """Send the words whose times became known since the last packet."""
        if not sentence.utterance.config.word_timestamps:
            return
        new_words = self._session.words(utterance_id)[sentence.words_sent :]
        sentence.words_sent += len(new_words)
        words = words_json(new_words, self._session.text(utterance_id), self._model_hz)
        if words:
            await self.send({"type": "audio.timestamps", **sentence.indexes, "words": words})

    # --- end of an utterance ------------------------------------------------------------------------------------------

    async def _end_sentence(self, utterance: WireUtterance) -> None:
        utterance.ended_sentences += 1
        await self._send_done_if_complete(utterance)

    async def end_text(self, utterance: WireUtterance) -> None:
        """The text of `utterance` is complete."""
        utterance.text_ended = True
        await self._send_done_if_complete(utterance)

    async def _send_done_if_complete(self, utterance: WireUtterance) -> None:
        """Send `session.done` when the text is complete and all its sentences are sent or failed."""
        all_ended = utterance.ended_sentences == utterance.sentences
        if utterance.text_ended and all_ended and not utterance.cancelled:
            await self.send(
                {
                    "type": "session.done",
                    "utterance_index": utterance.number,
                    "total_sentences": utterance.sentences,
                }
            )

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
