"""`/api-ws/v1/realtime`: the events of DashScope's `qwen3-tts-realtime`, for its SDK and everything written for it.

A `RealtimeSocket` owns the client's half between connect and disconnect: the settings and, in commit mode, the text
that was not committed yet. In `server_commit` mode text goes into the generation as it comes, and a commit or the
finish ends the response. docs/protocols.md says field by field what is the same and what is not.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.websockets import WebSocket

from legato.errors import InputError, StateError, TextTooLongError
from legato.server.conversation import Wire, serve_socket
from legato.server.encoding import chosen_rate
from legato.server.errors import ApiError
from legato.server.fields import Fields
from legato.server.realtime_answers import RealtimeAnswers, new_id
from legato.server.realtime_settings import RealtimeSettings, updated
from legato.server.session_settings import check_request, limits_of
from legato.server.speech_request import build
from legato.server.spoken import Spoken
from legato.server.state import ServerState
from legato.session.events import Acknowledged, Outgoing

ROUTE = "/api-ws/v1/realtime"
MAX_MESSAGE_BYTES = 2**20
MAX_TEXT_CHARS = 128 * 2**10

TYPES = (
    *("session.update", "session.finish", "response.cancel", "response.playback_ack"),
    *("input_text_buffer.append", "input_text_buffer.commit", "input_text_buffer.clear"),
)


class RealtimeSocket:
    """The dialect of one connection."""

    message_bytes = MAX_MESSAGE_BYTES

    def __init__(self, state: ServerState, wire: Wire, spoken: Spoken) -> None:
        self._state = state
        self._spoken = spoken
        self._answers = RealtimeAnswers(state, wire, spoken)
        self._settings = RealtimeSettings(sample_rate_hz=state.tts.sample_rate_hz)
        self._session_id = new_id("sess")
        self._buffer: list[str] = []
        self._event_id = ""
        self._configured = False

    async def begin(self) -> None:
        """Tell the defaults."""
        await self._answers.say("session.created", {"session": self._session()})

    async def take(self, fields: Fields) -> None:
        """Do what an event says."""
        self._event_id = ""
        self._event_id = fields.text("event_id", limit=200)
        kind = fields.choice("type", TYPES, "(none)")
        if kind not in ("session.update", "session.finish") and not self._configured:
            await self._configure(self._settings)
        match kind:
            case "session.update":
                await self._update(fields.section("session"))
            case "input_text_buffer.append":
                self._append(fields.text("text", limit=MAX_TEXT_CHARS))
            case "input_text_buffer.commit":
                await self._commit()
            case "input_text_buffer.clear":
                self._buffer.clear()
                await self._answers.say("input_text_buffer.cleared", {})
            case "response.cancel":
                self._cancel(fields)
            case "response.playback_ack":
                samples = fields.integer("played_through_sample", 0, low=0, high=2**53)
                for word in self._answers.acknowledged(fields.text("response_id", limit=200), samples):
                    self._spoken.acknowledge(word.utterance, word.samples)
            case _:
                self._finish()

    async def tell(self, item: Outgoing) -> None:
        """Send one item of the session."""
        await self._answers.tell(item)

    async def refuse(self, error: ApiError) -> None:
        """Tell the client of an error in the event it sent last."""
        await self._answers.error(error, self._event_id)

    # --- settings -----------------------------------------------------------------------------------------------------

    async def _update(self, session: Fields) -> None:
        if self._spoken.open_utterance or self._buffer:
            raise StateError("session.update came inside a response: commit or clear its text first")
        await self._configure(updated(self._settings, session, self._state))
        await self._answers.say("session.updated", {"session": self._session(), "ignored": session.unread[:32]})

    async def _configure(self, settings: RealtimeSettings) -> None:
        chosen_rate(settings.sample_rate_hz, self._state.tts.sample_rate_hz, settings.kind)
        request = await build(self._state, settings.options(self._state))
        check_request(self._state, request)
        ms = {"buffer_ms": settings.buffer_ms, "lead_ms": settings.lead_ms, "start_ms": settings.start_ms}
        self._spoken.configure(request, limits_of(self._state, request, **ms))
        self._settings, self._configured = settings, True

    def _session(self) -> dict[str, object]:
        model = self._state.config.model_id
        return {"id": self._session_id, "object": "realtime.session", "model": model, **self._settings.as_json()}

    # --- text ---------------------------------------------------------------------------------------------------------

    def _append(self, text: str) -> None:
        if self._settings.mode == "commit":
            limit = self._state.config.text_characters
            if sum(map(len, self._buffer)) + len(text) > limit:
                raise TextTooLongError(f"the buffer would pass its limit of {limit} characters", field="text")
            self._buffer.append(text)
        elif text:
            self._answers.response(self._spoken.write(text), self._settings)

    async def _commit(self) -> None:
        """End the response's text; in commit mode, begin the response."""
        if self._buffer:
            stream = self._spoken.say("".join(self._buffer))
            self._buffer.clear()
        elif self._spoken.open_utterance:
            stream = self._spoken.open_utterance[0]
            self._spoken.end_text()
        else:
            raise InputError("the text buffer is empty: there is nothing to commit", field="text")
        item_id = self._answers.response(stream, self._settings).item_id
        await self._answers.say("input_text_buffer.committed", {"item_id": item_id})

    def _cancel(self, fields: Fields) -> None:
        """Stop everything that plays, waits or is written."""
        played: tuple[Acknowledged, ...] = ()
        if fields.has("played_through_sample"):
            samples = fields.integer("played_through_sample", 0, low=0, high=2**53)
            played = self._answers.acknowledged(fields.text("response_id", limit=200), samples)
        if self._spoken.idle:
            raise StateError("there is no response to cancel")
        self._spoken.interrupt(played)

    def _finish(self) -> None:
        if self._buffer:
            self._answers.response(self._spoken.say("".join(self._buffer)), self._settings)
            self._buffer.clear()
        self._spoken.finish()


async def serve(socket: WebSocket) -> None:
    """One connection. The model's name in its URL is not looked at: the SDK sends that of the hosted service."""
    await serve_socket(socket, ROUTE, buffer_ms=30_000, dialect=RealtimeSocket)


def add_routes(app: FastAPI) -> None:
    """Make `app` serve the route."""
    app.add_api_websocket_route(ROUTE, serve)
