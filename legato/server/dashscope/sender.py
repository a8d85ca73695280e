"""Server events of the DashScope realtime protocol: turns session outputs into events.

A `RealtimeSender` belongs to one connection. It maps the session's utterances to responses of the protocol, and owns
the encoder of the response that is being sent. Responses never interleave: each is sent from `response.created` to
`response.done` before the next one.
"""

from __future__ import annotations

import base64
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from legato.server.dashscope.settings import RealtimeSettings
from legato.server.errors import ApiError, api_error
from legato.server.fields import to_json
from legato.server.session_json import convert_samples, interruption_json, words_json
from legato.server.session_runner import SessionRunner
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
    SessionClosed,
    SessionOutput,
    UtteranceFailed,
    UtteranceId,
)
from legato.types import REGULAR_ENDS, FinishReason, Packet

AUDIO_TOKENS_PER_S = 50
"""Audio tokens per second, as the hosted service counts them; less than a second counts as one second."""


def new_id(kind: str) -> str:
    """A random id. `kind`: its prefix (event, sess, resp, item)."""
    return f"{kind}_{secrets.token_hex(12)}"


@dataclass(slots=True)
class RealtimeResponse:
    """A response of the protocol: one utterance of the session."""

    settings: RealtimeSettings
    id: str = field(default_factory=lambda: new_id("resp"))
    item_id: str = field(default_factory=lambda: new_id("item"))
    audio_started: bool = False
    audio_ended: bool = False
    words_sent: int = 0
    encoder: UtteranceEncoder | None = None
    """None until the first audio."""

    @property
    def active_encoder(self) -> UtteranceEncoder:
        """The encoder, once audio has started."""
        assert self.encoder is not None, "audio is sent after AudioStart only"
        return self.encoder

    @property
    def location(self) -> dict[str, object]:
        """The fields that locate an event inside the response."""
        return {"response_id": self.id, "item_id": self.item_id, "output_index": 0, "content_index": 0}

    def item(self, status: str) -> dict[str, object]:
        """The output item of the response (there is always one)."""
        content = [{"type": "audio", "text": ""}] if self.audio_started and status != "in_progress" else []
        item = {"id": self.item_id, "object": "realtime.item", "type": "message", "status": status}
        return {**item, "role": "assistant", "content": content}


class RealtimeSender:
    """Sends all events of one connection."""

    def __init__(self, state: ServerState, socket: SocketSender, session: SessionRunner) -> None:
        self._state = state
        self._socket = socket
        self._session = session
        self._model_hz = state.tts.sample_rate_hz
        self._responses: dict[UtteranceId, RealtimeResponse] = {}
        self._newest: tuple[UtteranceId, RealtimeResponse] | None = None
        """The last response that was created. It may be over while its text is still open."""

    def response(self, utterance_id: UtteranceId, settings: RealtimeSettings) -> RealtimeResponse:
        """The response of the newest utterance, created with `settings` on first use."""
        if self._newest is None or utterance_id > self._newest[0]:
            response = self._responses[utterance_id] = RealtimeResponse(settings)
            self._newest = (utterance_id, response)
        return self._newest[1]

    def playback_ack(self, response_id: str, samples: int) -> PlaybackAck | None:
        """A play position in a response ("": the oldest) as an event of the session; None if the response is over."""
        for utterance_id, response in self._responses.items():
            if response_id in ("", response.id):
                rate_hz = response.settings.sample_rate_hz
                return PlaybackAck(utterance_id, convert_samples(samples, from_hz=rate_hz, to_hz=self._model_hz))
        return None

    async def send_output(self, output: SessionOutput) -> None:
        """Send one output of the session."""
        match output:
            case AudioStart(utterance_id=utterance_id):
                await self._send_start(self._responses[utterance_id])
            case AudioPacket(utterance_id=utterance_id, packet=packet):
                await self._send_packet(utterance_id, self._responses[utterance_id], packet)
            case AudioEnd(utterance_id=utterance_id, reason=reason):
                await self._send_end(utterance_id, self._responses[utterance_id], reason)
            case PlaybackFinished(utterance_id=utterance_id):
                self._responses.pop(utterance_id, None)
            case Cancelled(reports=reports):
                for report in reports:
                    await self._send_interruption(report, self._responses.pop(report.utterance_id))
            case UtteranceFailed(utterance_id=utterance_id, error=error):
                await self._send_failure(utterance_id, self._responses.pop(utterance_id), api_error(error))
            case SessionClosed():
                await self.send("session.finished", {})

    # --- responses ----------------------------------------------------------------------------------------------------

    async def _send_start(self, response: RealtimeResponse) -> None:
        settings = response.settings
        response.encoder = UtteranceEncoder(
            settings.audio_format, self._model_hz, settings.sample_rate_hz, settings.gain
        )
        await self._send_created(response)
        response.audio_started = True
        part = {"part": {"type": "audio", "text": ""}}
        await self.send("response.content_part.added", {**response.location, **part})

    async def _send_created(self, response: RealtimeResponse) -> None:
        await self.send("response.created", {"response": self._body(response, "in_progress", {})})
        item = {"response_id": response.id, "output_index": 0, "item": response.item("in_progress")}
        await self.send("response.output_item.added", item)

    async def _send_packet(self, utterance_id: UtteranceId, response: RealtimeResponse, packet: Packet) -> None:
        data = await self._session.encode(response.active_encoder, response.active_encoder.encode, packet)
        await self._send_words(utterance_id, response)
        await self._send_audio(response, data)

    async def _send_audio(self, response: RealtimeResponse, data: bytes) -> None:
        if data:
            await self.send("response.audio.delta", {**response.location, "delta": base64.b64encode(data).decode()})

    async def _send_words(self, utterance_id: UtteranceId, response: RealtimeResponse) -> None:
        """Send the words whose times became known since the last packet."""
        if not response.settings.word_timestamps:
            return
        new_words = self._session.words(utterance_id)[response.words_sent :]
        response.words_sent += len(new_words)
        if new_words:
            words = words_json(new_words, self._session.text(utterance_id), self._model_hz)
            await self.send("response.audio.timestamps", {**response.location, "words": words})

    async def _send_end(self, utterance_id: UtteranceId, response: RealtimeResponse, reason: FinishReason) -> None:
        data = await self._session.encode(response.active_encoder, response.active_encoder.finish)
        await self._send_words(utterance_id, response)
        await self._send_audio(response, data)
        response.audio_ended = True
        more: dict[str, object] = {"finish_reason": reason.value}
        if reason in REGULAR_ENDS:
            await self._send_done(utterance_id, response, "completed", more)
        else:
            more["status_details"] = {"type": "incomplete", "reason": reason.value}
            await self._send_done(utterance_id, response, "incomplete", more)

    async def _send_done(
        self, utterance_id: UtteranceId, response: RealtimeResponse, status: str, more: Mapping[str, object]
    ) -> None:
        """Send the events that close a response. `status`: completed, incomplete, cancelled or failed."""
        if response.audio_started:
            await self.send("response.audio.done", response.location)
            part = {"part": {"type": "audio", "text": ""}}
            await self.send("response.content_part.done", {**response.location, **part})
        item_status = "completed" if status == "completed" else "incomplete"
        item = {"response_id": response.id, "output_index": 0, "item": response.item(item_status)}
        await self.send("response.output_item.done", item)
        record = self._session.record(utterance_id)
        extensions = {"request_id": record.id, "timing": record.timings_json()}
        body = self._body(response, status, {"usage": self._usage(utterance_id, response), **extensions, **more})
        await self.send("response.done", {"response": body})

    async def _send_interruption(self, report: InterruptionReport, response: RealtimeResponse) -> None:
        """Send the report of an interrupted response.

        A response that is completely sent has had its `response.done`; its report is an event of its own.
        """
        report_json = interruption_json(
            report,
            self._session.heard_text(report),
            self._session.text(report.utterance_id),
            model_hz=self._model_hz,
            rate_hz=response.settings.sample_rate_hz,
        )
        if response.audio_ended:
            await self.send("response.interrupted", {"response_id": response.id, **report_json})
            return
        if not response.audio_started:
            await self._send_created(response)
        details = {"type": "cancelled", "reason": "client_cancelled", **report_json}
        await self._send_done(report.utterance_id, response, "cancelled", {"status_details": details})

    async def _send_failure(self, utterance_id: UtteranceId, response: RealtimeResponse, error: ApiError) -> None:
        await self.send_error(error, "")
        if not response.audio_started:
            await self._send_created(response)
        details = {"type": "failed", "error": {"code": error.code, "message": str(error)}}
        await self._send_done(utterance_id, response, "failed", {"status_details": details})

    def _body(self, response: RealtimeResponse, status: str, more: Mapping[str, object]) -> dict[str, object]:
        if status == "in_progress":
            output = []
        else:
            output = [response.item("completed" if status == "completed" else "incomplete")]
        return {
            "id": response.id,
            "object": "realtime.response",
            "conversation_id": "",
            "status": status,
            "modalities": ["text", "audio"],
            "voice": response.settings.voice,
            "output": output,
            **more,
        }

    def _usage(self, utterance_id: UtteranceId, response: RealtimeResponse) -> dict[str, object]:
        """Token usage as the hosted service counts it: text tokens, and audio tokens of the audio that was sent."""
        text_tokens = self._session.text_tokens(utterance_id)
        samples = 0 if response.encoder is None else response.encoder.samples
        audio_tokens = math.ceil(AUDIO_TOKENS_PER_S * samples / response.settings.sample_rate_hz)
        if samples:
            audio_tokens = max(AUDIO_TOKENS_PER_S, audio_tokens)
        return {
            "characters": len(self._session.text(utterance_id)),
            "input_tokens": text_tokens,
            "output_tokens": audio_tokens,
            "total_tokens": text_tokens + audio_tokens,
            "input_tokens_details": {"text_tokens": text_tokens},
            "output_tokens_details": {"text_tokens": 0, "audio_tokens": audio_tokens},
        }

    # --- events -------------------------------------------------------------------------------------------------------

    async def send_error(self, error: ApiError, event_id: str) -> None:
        """Send an error. `event_id`: the client's event that caused it, "" if none."""
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        body = {"type": kind, "code": error.code, "message": str(error), "param": error.param or None}
        await self.send("error", {"error": {**body, "event_id": event_id or None}})

    async def send(self, kind: str, body: Mapping[str, object]) -> None:
        """Send one event."""
        await self._socket.text(to_json({"event_id": new_id("event"), "type": kind, **body}))
