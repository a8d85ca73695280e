"""The server's half of the DashScope realtime dialect: items of the session become its events.

A `RealtimeAnswers` owns, from connect to disconnect, the response that each stream of the session is, and the sound of
the one that is being sent. Responses are told one after the other, each from `response.created` to `response.done`.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from legato.flow import Packet
from legato.server.conversation import Wire
from legato.server.errors import ApiError, api_error
from legato.server.fields import to_json
from legato.server.realtime_settings import RealtimeSettings
from legato.server.records import timing_json
from legato.server.reports import interruption_json, words_json
from legato.server.spoken import Spoken
from legato.server.state import ServerState
from legato.server.utterance_sound import UtteranceSound
from legato.session.events import (
    Acknowledged,
    Audio,
    Begins,
    Closed,
    Ends,
    Failed,
    Outgoing,
    Played,
    Stopped,
    UtteranceId,
)

AUDIO_TOKENS_PER_S = 50
"""How the hosted service counts audio; less than a second counts as one."""


def new_id(kind: str) -> str:
    """An id of an event, a session, a response or an item."""
    return f"{kind}_{secrets.token_hex(12)}"


@dataclass(slots=True)
class Response:
    """What one stream of the session is on the wire."""

    settings: RealtimeSettings
    id: str = field(default_factory=lambda: new_id("resp"))
    item_id: str = field(default_factory=lambda: new_id("item"))
    begun: bool = False
    ended: bool = False
    words_told: int = 0
    sounds: list[UtteranceSound] = field(default_factory=list)

    @property
    def place(self) -> dict[str, object]:
        """As events inside it carry it."""
        return {"response_id": self.id, "item_id": self.item_id, "output_index": 0, "content_index": 0}

    def item(self, status: str) -> dict[str, object]:
        """Its one output item."""
        content = [{"type": "audio", "text": ""}] if self.begun and status != "in_progress" else []
        item = {"id": self.item_id, "object": "realtime.item", "type": "message", "status": status}
        return {**item, "role": "assistant", "content": content}


class RealtimeAnswers:
    """Everything that goes to the client of one connection."""

    def __init__(self, state: ServerState, wire: Wire, spoken: Spoken) -> None:
        self._state = state
        self._wire = wire
        self._spoken = spoken
        self._own_hz = state.tts.sample_rate_hz
        self._responses: dict[UtteranceId, Response] = {}

    def response(self, stream: UtteranceId, settings: RealtimeSettings) -> Response:
        """The response that `stream` is; a new one the first time."""
        if stream not in self._responses:
            self._responses[stream] = Response(settings)
        return self._responses[stream]

    def acknowledged(self, response_id: str, samples: int) -> tuple[Acknowledged, ...]:
        """What the client played of a response ("": of the first one), in the session's terms."""
        for stream, response in self._responses.items():
            if response_id in ("", response.id):
                return (Acknowledged(stream, round(samples * self._own_hz / response.settings.sample_rate_hz)),)
        return ()

    async def tell(self, item: Outgoing) -> None:
        """Send one item of the session."""
        match item:
            case Begins(utterance=stream):
                await self._begin(self._responses[stream])
            case Audio(utterance=stream, packet=packet):
                await self._audio(stream, self._responses[stream], packet)
            case Ends(utterance=stream):
                await self._end(stream, self._responses[stream])
            case Played(utterance=stream):
                self._responses.pop(stream, None)
            case Stopped(utterances=reports):
                for report in reports:
                    response = self._responses.pop(report.utterance)
                    text, heard = self._spoken.text(report.utterance), self._spoken.heard(report)
                    rate_hz = response.settings.sample_rate_hz
                    told = interruption_json(report, heard, text, own_hz=self._own_hz, rate_hz=rate_hz)
                    await self._stopped(report.utterance, response, told)
            case Failed(utterance=stream, error=error):
                await self._failed(stream, self._responses.pop(stream), api_error(error))
            case Closed():
                await self.say("session.finished", {})

    # --- a response ---------------------------------------------------------------------------------------------------

    async def _begin(self, response: Response) -> None:
        settings = response.settings
        gain, rate_hz = settings.gain, settings.sample_rate_hz
        response.sounds = [UtteranceSound(settings.kind, self._own_hz, rate_hz, gain)]
        await self._created(response)
        response.begun = True
        part = {"part": {"type": "audio", "text": ""}}
        await self.say("response.content_part.added", {**response.place, **part})

    async def _created(self, response: Response) -> None:
        await self.say("response.created", {"response": self._body(response, "in_progress", {})})
        item = {"response_id": response.id, "output_index": 0, "item": response.item("in_progress")}
        await self.say("response.output_item.added", item)

    async def _audio(self, stream: UtteranceId, response: Response, packet: Packet) -> None:
        data = await self._state.bridge.in_thread(response.sounds[0].take, packet)
        await self._words(stream, response)
        await self._delta(response, data)

    async def _delta(self, response: Response, data: bytes) -> None:
        if data:
            await self.say("response.audio.delta", {**response.place, "delta": base64.b64encode(data).decode()})

    async def _words(self, stream: UtteranceId, response: Response) -> None:
        """The words that became known since the last packet, where the client asked for them."""
        if not response.settings.word_timestamps:
            return
        fresh = self._spoken.words(stream)[response.words_told :]
        response.words_told += len(fresh)
        if fresh:
            words = words_json(fresh, self._spoken.text(stream), self._own_hz)
            await self.say("response.audio.timestamps", {**response.place, "words": words})

    async def _end(self, stream: UtteranceId, response: Response) -> None:
        data = await self._state.bridge.in_thread(response.sounds[0].finish)
        await self._words(stream, response)
        await self._delta(response, data)
        response.ended = True
        await self._done(stream, response, "completed", {})

    async def _done(self, stream: UtteranceId, response: Response, status: str, more: Mapping[str, object]) -> None:
        """The events that close a response, whatever ended it."""
        if response.begun:
            await self.say("response.audio.done", response.place)
            part = {"part": {"type": "audio", "text": ""}}
            await self.say("response.content_part.done", {**response.place, **part})
        item_status = "completed" if status == "completed" else "incomplete"
        item = {"response_id": response.id, "output_index": 0, "item": response.item(item_status)}
        await self.say("response.output_item.done", item)
        record = self._spoken.record(stream)
        ours = {"request_id": record.id, "timing": [timing_json(timing) for timing in record.timings]}
        body = self._body(response, status, {"usage": self._usage(stream, response), **ours, **more})
        await self.say("response.done", {"response": body})

    async def _stopped(self, stream: UtteranceId, response: Response, told: dict[str, object]) -> None:
        """A response that was sent to its end has its `response.done` already; what was heard of it is told apart."""
        if response.ended:
            await self.say("response.interrupted", {"response_id": response.id, **told})
            return
        if not response.begun:
            await self._created(response)
        details = {"type": "cancelled", "reason": "client_cancelled", **told}
        await self._done(stream, response, "cancelled", {"status_details": details})

    async def _failed(self, stream: UtteranceId, response: Response, error: ApiError) -> None:
        await self.error(error, "")
        if not response.begun:
            await self._created(response)
        details = {"type": "failed", "error": {"code": error.code, "message": str(error)}}
        await self._done(stream, response, "failed", {"status_details": details})

    def _body(self, response: Response, status: str, more: Mapping[str, object]) -> dict[str, object]:
        output = (
            [] if status == "in_progress" else [response.item("completed" if status == "completed" else "incomplete")]
        )
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

    def _usage(self, stream: UtteranceId, response: Response) -> dict[str, object]:
        """As the hosted service counts: tokens of the text, fifty for each second of audio that was sent."""
        text_tokens = self._spoken.text_tokens(stream)
        samples = sum(sound.samples for sound in response.sounds)
        rate_hz = response.settings.sample_rate_hz
        audio_tokens = max(AUDIO_TOKENS_PER_S, -(-AUDIO_TOKENS_PER_S * samples // rate_hz)) if samples else 0
        return {
            "characters": len(self._spoken.text(stream)),
            "input_tokens": text_tokens,
            "output_tokens": audio_tokens,
            "total_tokens": text_tokens + audio_tokens,
            "input_tokens_details": {"text_tokens": text_tokens},
            "output_tokens_details": {"text_tokens": 0, "audio_tokens": audio_tokens},
        }

    # --- the wire -----------------------------------------------------------------------------------------------------

    async def error(self, error: ApiError, event_id: str) -> None:
        """An error; `event_id`: the client's event that it answers."""
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        body = {"type": kind, "code": error.code, "message": str(error), "param": error.param or None}
        await self.say("error", {"error": {**body, "event_id": event_id or None}})

    async def say(self, kind: str, body: Mapping[str, object]) -> None:
        """One event."""
        await self._wire.text(to_json({"event_id": new_id("event"), "type": kind, **body}))
