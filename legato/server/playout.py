"""`POST /v1/requests/{id}/playout`: a client tells when it heard its request, which no server can know. Owns nothing.

The figures are the client's own, on its own clock, counted from the moment it asked; they are kept with the request's
record as they came. Whoever knows the id, which cannot be guessed, may tell them, and the last word counts.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from legato.server.info import known_record
from legato.server.state import state_of

router = APIRouter()

Milliseconds = Annotated[float, Field(ge=0, le=3_600_000, allow_inf_nan=False)]


class Playout(BaseModel):
    """What a client measured: all times since it asked, in milliseconds of its clock."""

    model_config = ConfigDict(extra="forbid", strict=True)

    first_bytes_ms: Milliseconds = Field(description="The first audio bytes were there.")
    first_sound_ms: Milliseconds = Field(description="The first sample was handed to the device.")
    first_audible_ms: Milliseconds | None = Field(
        default=None, description="The first sample that can be heard was; left out where none came."
    )
    output_ms: Milliseconds | None = Field(
        default=None, description="What the device says it takes from there to the ear."
    )
    underruns: int = Field(default=0, ge=0, le=1_000_000, description="How often playback waited for audio.")
    underrun_ms: Milliseconds = Field(default=0.0, description="For how long in all.")


@router.post("/v1/requests/{request_id}/playout", status_code=204, summary="Tell when a request was heard")
async def playout(request: Request, request_id: str, heard: Playout) -> Response:
    """Keep it with the request's record, beside the stages that the server measured."""
    record = known_record(state_of(request), request_id)
    if not record.playout:  # each request is counted once
        state_of(request).metrics.heard(heard.first_bytes_ms / 1000, heard.first_sound_ms / 1000)
    record.playout.update(heard.model_dump(exclude_none=True))
    return Response(status_code=204)
