"""`/api-ws/v1/realtime`: the protocol of DashScope's `qwen3-tts-*-realtime`, for its SDK and compatible clients.

A `RealtimeSocket` belongs to one connection. It owns the settings and, in `commit` mode, the text that is not committed
yet. In `server_commit` mode text is generated as it arrives, and a commit or the finish ends the response.
docs/protocols.md lists field by field what is supported.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.websockets import WebSocket

from legato.errors import InputError, StateError, TextTooLongError
from legato.server.dashscope.sender import RealtimeSender, new_id
from legato.server.dashscope.settings import RealtimeSettings, update_settings
from legato.server.encoding import resolve_sample_rate
from legato.server.errors import ApiError
from legato.server.fields import Fields
from legato.server.openai.speech_request import build_request
from legato.server.session_runner import SessionRunner
from legato.server.session_settings import check_request, limits_of
from legato.server.state import ServerState, state_of
from legato.server.websocket import SocketSender, serve_socket
from legato.session.events import PlaybackAck, SessionOutput

ROUTE = "/api-ws/v1/realtime"
MAX_MESSAGE_BYTES = 2**20
MAX_TEXT_CHARS = 128 * 2**10

TYPES = (
    "session.update",
    "session.finish",
    "response.cancel",
    "response.playback_ack",
    "input_text_buffer.append",
    "input_text_buffer.commit",
    "input_text_buffer.clear",
)


class RealtimeSocket:
    """The protocol of one connection."""

    max_message_bytes = MAX_MESSAGE_BYTES

    def __init__(self, state: ServerState, socket: SocketSender, session: SessionRunner) -> None:
        self._state = state
        self._session = session
        self._sender = RealtimeSender(state, socket, session)
        self._settings = RealtimeSettings(sample_rate_hz=state.tts.sample_rate_hz)
        self._session_id = new_id("sess")
        self._buffer: list[str] = []
        """Text that is appended and not committed, in `commit` mode."""
        self._event_id = ""
        """Id of the client event that is being processed, for errors."""
        self._configured = False

    async def on_connect(self) -> None:
        """Send the default settings."""
        await self._sender.send("session.created", {"session": self._session_json()})

    async def on_message(self, fields: Fields) -> None:
        """Process an event of the client."""
        self._event_id = ""  # an invalid `event_id` must not leave the previous one
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
                await self._sender.send("input_text_buffer.cleared", {})
            case "response.cancel":
                self._cancel(fields)
            case "response.playback_ack":
                ack = self._playback_ack(fields)
                if ack is not None:
                    self._session.acknowledge(ack)
            case _:
                self._finish()

    async def send_output(self, output: SessionOutput) -> None:
        """Send an output of the session."""
        await self._sender.send_output(output)

    async def send_error(self, error: ApiError) -> None:
        """Send an error about the last event of the client."""
        await self._sender.send_error(error, self._event_id)

    # --- settings -----------------------------------------------------------------------------------------------------

    async def _update(self, session: Fields) -> None:
        if self._session.open_utterance is not None or self._buffer:
            raise StateError("session.update is not allowed inside a response: commit or clear its text first")
        await self._configure(update_settings(self._settings, session, self._state))
        await self._sender.send("session.updated", {"session": self._session_json(), "ignored": session.unread[:32]})

    async def _configure(self, settings: RealtimeSettings) -> None:
        resolve_sample_rate(settings.sample_rate_hz, self._state.tts.sample_rate_hz, settings.audio_format)
        request = await build_request(self._state, settings.options(self._state))
        check_request(self._state, request)
        limits = limits_of(
            self._state, request, buffer_ms=settings.buffer_ms, lead_ms=settings.lead_ms, start_ms=settings.start_ms
        )
        self._session.configure(request, limits, model=self._state)
        self._settings, self._configured = settings, True

    def _session_json(self) -> dict[str, object]:
        model = self._state.config.model_id
        return {"id": self._session_id, "object": "realtime.session", "model": model, **self._settings.as_json()}

    # --- text ---------------------------------------------------------------------------------------------------------

    def _append(self, text: str) -> None:
        if self._session.open_utterance is None:
            self._session.check_accepting()
        if self._settings.mode == "commit":
            limit = self._state.config.text_characters
            if sum(map(len, self._buffer)) + len(text) > limit:
                raise TextTooLongError(f"the text buffer would exceed its limit of {limit} characters", field="text")
            self._buffer.append(text)
        elif text:
            self._sender.response(self._session.add_text(text), self._settings)

    async def _commit(self) -> None:
        """Commit mode: start a response with the buffered text. Otherwise: end the text of the open response."""
        open_utterance = self._session.open_utterance
        if self._buffer:
            self._session.check_accepting()
            utterance_id = self._session.speak("".join(self._buffer))
            self._buffer.clear()
        elif open_utterance is not None:
            utterance_id = open_utterance
            self._session.end_utterance()
        else:
            raise InputError("the text buffer is empty: there is nothing to commit", field="text")
        item_id = self._sender.response(utterance_id, self._settings).item_id
        await self._sender.send("input_text_buffer.committed", {"item_id": item_id})

    def _cancel(self, fields: Fields) -> None:
        """Stop every response that is playing, queued or open."""
        ack = self._playback_ack(fields) if fields.has("played_through_sample") else None
        if self._session.idle:
            raise StateError("there is no response to cancel")
        self._session.interrupt(() if ack is None else (ack,))

    def _playback_ack(self, fields: Fields) -> PlaybackAck | None:
        samples = fields.integer("played_through_sample", 0, low=0, high=2**53)
        return self._sender.playback_ack(fields.text("response_id", limit=200), samples)

    def _finish(self) -> None:
        if self._buffer:
            self._session.check_accepting()
            self._sender.response(self._session.speak("".join(self._buffer)), self._settings)
            self._buffer.clear()
        self._session.close_input()


async def serve(socket: WebSocket) -> None:
    """Serve one connection with the model that the URL names.

    Unknown names select the default model: the SDK sends a name of the hosted service.
    """
    state = state_of(socket)
    model = state.find_model(socket.query_params.get("model", "")) or state
    await serve_socket(socket, model, ROUTE, buffer_ms=30_000, protocol=RealtimeSocket)


def add_routes(app: FastAPI) -> None:
    """Add the route to `app`."""
    app.add_api_websocket_route(ROUTE, serve)
