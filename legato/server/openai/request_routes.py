"""Routes for a past or running request: its record, and the client's playback report.

Only the client can measure when audio was heard. It may post these times, measured on its own clock since it sent the
request; they are stored unchanged in the request's record. Knowing the request id, which cannot be guessed, is the
permission to do so. A later report replaces an earlier one.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from legato.server.errors import ApiError
from legato.server.request_records import RequestRecord
from legato.server.state import ServerState, state_of

router = APIRouter()

Milliseconds = Annotated[float, Field(ge=0, le=3_600_000, allow_inf_nan=False)]


class Playout(BaseModel):
    """Times measured by a client, in milliseconds since it sent the request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    first_bytes_ms: Milliseconds = Field(description="The first audio bytes arrived.")
    first_sound_ms: Milliseconds = Field(description="The first sample was passed to the audio device.")
    first_audible_ms: Milliseconds | None = Field(
        default=None, description="The first audible sample was passed to the audio device; omit if there was none."
    )
    output_ms: Milliseconds | None = Field(default=None, description="Output latency as reported by the audio device.")
    underruns: int = Field(default=0, ge=0, le=1_000_000, description="Number of underruns during playback.")
    underrun_ms: Milliseconds = Field(default=0.0, description="Total duration of the underruns.")


@router.get("/v1/requests/{request_id}", summary="Get the status of a request")
async def request_record(request: Request, request_id: str) -> dict[str, object]:
    """Outcome, finish reason and timing of a running or finished request, by its X-Request-Id."""
    return _record(state_of(request), request_id).as_json()


@router.post("/v1/requests/{request_id}/playout", status_code=204, summary="Report playback times of a request")
async def playout(request: Request, request_id: str, report: Playout) -> Response:
    """Store the report in the request's record, next to the stages measured by the server."""
    record = _record(state_of(request), request_id)
    if not record.playout:  # count each request once in the metrics, however many reports follow
        state_of(request).metrics.playback_reported(report.first_bytes_ms / 1000, report.first_sound_ms / 1000)
    record.playout.update(report.model_dump(exclude_none=True))
    return Response(status_code=204)


def _record(state: ServerState, request_id: str) -> RequestRecord:
    record = state.records.find(request_id)
    if record is None:
        raise ApiError(
            404, "unknown_request", "unknown request id: only the latest requests are stored", param="request_id"
        )
    return record
