"""`POST /v1/audio/speech/batch`: synthesize many texts, and send each result when it is ready.

A `BatchResponse` runs the items in a few tasks, as many as the model generates at the same time, and sends results in
the order in which they are finished. An item that fails does not fail the others. When the client disconnects, all
streams are cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from legato.errors import TextTooLongError
from legato.server.bodies import read_body
from legato.server.client_limits import client_of
from legato.server.disconnect import ClientDisconnectedError, RequestTimeoutError, while_connected
from legato.server.errors import ApiError, internal_error
from legato.server.openai.batch_output import BatchOutput, BatchProgress, ItemResult, make_output
from legato.server.openai.batch_schema import MEDIA_TYPES, BatchItem, batch_schema, parse_batch
from legato.server.openai.whole_speech import synthesize
from legato.server.request_records import RequestRecord
from legato.server.state import ServerState, state_of
from legato.types import Packet

log = logging.getLogger("legato.server")
router = APIRouter()

ROUTE = "/v1/audio/speech/batch"
_RETRY_S = 0.5
"""Time after which an item that found the queue full is tried again: a batch can wait, other requests cannot."""


@router.post(
    ROUTE,
    summary="Synthesize many texts",
    response_class=Response,
    responses={200: {"description": "Results", "content": {kind: {} for kind in MEDIA_TYPES}}},
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": batch_schema()}}}},
)
async def batch(request: Request) -> Response:
    """Speak every item of `items`; results arrive as they are ready, and one failure does not fail the rest."""
    state = state_of(request)
    received = await read_body(request, upload_names=())
    if received.is_form:
        raise ApiError(415, "unsupported_media_type", "send application/json with items")
    items, output = parse_batch(received.fields, request.headers.get("accept", ""))
    characters, limit = sum(item.characters for item in items), state.config.batch_characters
    if characters > limit:
        raise TextTooLongError(
            f"the texts have {characters} characters together: the limit of a batch is {limit}", field="items"
        )
    state.check_accepting()
    return BatchResponse(state, items, make_output(output), request.state.request_id, client_of(request))


@dataclass(slots=True)
class _Counters:
    """Progress so far."""

    started_s: float
    done: int = 0
    failed: int = 0
    characters: int = 0
    frames: int = 0


class BatchResponse(Response):
    """Runs one batch."""

    def __init__(
        self, state: ServerState, items: list[BatchItem], output: BatchOutput, request_id: str, client: str
    ) -> None:
        super().__init__()
        self._state = state
        self._items = items
        self._output = output
        self._id = request_id
        self._client = client
        self._counters = _Counters(time.monotonic())
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's signature
        """Serve the request. A response that is cut off has no regular end."""
        config = self._state.config
        try:
            with self._state.drain.track():
                await while_connected(
                    receive, self._serve(send), limit_s=config.batch_s, stop=self._state.drain.expired
                )
        except ClientDisconnectedError:
            log.info("%s client disconnected after %d results", self._id, self._counters.done)
        except (ApiError, RequestTimeoutError) as error:
            failure = error if isinstance(error, ApiError) else ApiError(504, "timeout", f"batch stopped: {error}")
            if not self._started:
                raise failure from error
            log.warning("%s batch aborted after %d results: %s", self._id, self._counters.done, failure)

    async def _serve(self, send: Send) -> None:
        self._output.begin(self._items)
        async for result in self._results(send):
            self._count(result)
            await self._send(send, self._output.add(result, self._progress()))
        await self._send(send, self._output.end(self._progress()), more=False)

    async def _results(self, send: Send) -> AsyncIterator[ItemResult]:
        """The results as they are ready. Sends keep-alive bytes and progress while there are none."""
        queue: asyncio.Queue[ItemResult] = asyncio.Queue(maxsize=1)
        waiting = iter(self._items)
        tasks = [asyncio.create_task(self._work(waiting, queue)) for _ in range(self._width())]
        try:
            for _ in self._items:
                while True:
                    try:
                        result = await asyncio.wait_for(queue.get(), self._output.idle_s(self._state.config.comment_s))
                        break
                    except asyncio.TimeoutError:
                        await self._send(send, self._output.idle(self._progress()))
                yield result
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _width(self) -> int:
        """Items in work at the same time: as many as the largest model generates together."""
        slots = max(state.tts.config.max_num_seqs for state in self._state.models)
        return min(len(self._items), slots, self._state.config.client_streams)

    async def _work(self, waiting: Iterator[BatchItem], queue: asyncio.Queue[ItemResult]) -> None:
        for item in waiting:
            await queue.put(await self._run(item))

    async def _run(self, item: BatchItem) -> ItemResult:
        """Speak one item. A full queue is no failure: the item waits."""
        record = RequestRecord(id=f"{self._id}-{item.index}", route=ROUTE)
        limit_s = self._state.config.request_s
        try:
            body = item.request()
            while True:
                try:
                    speaking = synthesize(self._state, body, record, client=self._client, on_packet=self._on_packet)
                    return ItemResult(item, record, await asyncio.wait_for(speaking, limit_s), None)
                except ApiError as error:
                    if error.status != 429:
                        raise
                    record = RequestRecord(id=record.id, route=ROUTE)
                    await asyncio.sleep(_RETRY_S)
        except ApiError as error:
            return ItemResult(item, record, None, error)
        except asyncio.TimeoutError:
            late = ApiError(504, "timeout", f"the item took longer than {limit_s:g} s")
            return ItemResult(item, record, None, late)
        except Exception:  # boundary: an internal error fails this item, not the batch
            log.exception("%s failed", record.id)
            return ItemResult(item, record, None, internal_error(record.id))

    def _on_packet(self, packet: Packet) -> None:
        self._counters.frames += packet.frames

    def _count(self, result: ItemResult) -> None:
        self._counters.done += 1
        self._counters.failed += result.error is not None
        self._counters.characters += result.item.characters

    def _progress(self) -> BatchProgress:
        counters = self._counters
        elapsed_s = time.monotonic() - counters.started_s
        total = sum(item.characters for item in self._items)
        left_s = elapsed_s * (total - counters.characters) / counters.characters if counters.characters else None
        frame_s = self._state.tts.model.config.codec.frame_samples / self._state.tts.sample_rate_hz
        return BatchProgress(
            total=len(self._items),
            done=counters.done,
            failed=counters.failed,
            share=counters.characters / total if total else 1.0,
            audio_s=counters.frames * frame_s,
            elapsed_s=elapsed_s,
            left_s=left_s,
        )

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        """Send bytes; the first call also sends the status and headers."""
        stall_s = self._state.config.stall_s
        try:
            if not self._started:
                self._started = True
                headers = [(b"content-type", self._output.media_type.encode()), (b"cache-control", b"no-store")]
                headers += [(name.encode(), value.encode()) for name, value in self._output.headers.items()]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            message = {"type": "http.response.body", "body": data, "more_body": more}
            await asyncio.wait_for(send(message), stall_s)
        except asyncio.TimeoutError as error:
            raise RequestTimeoutError(f"the client read nothing for {stall_s:g} s") from error
