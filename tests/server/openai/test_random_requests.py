"""Property tests: schemathesis generates valid and invalid requests from the OpenAPI document.

Every response must match the document, without 5xx or hangs, and the server works afterwards. Speech is limited to one
frame.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.server.running import Running, slots_free, wait_for

Operation = APIOperation[Any, Any, Any, Any]
GeneratedCase = Case[Any]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
VALID, INVALID = GenerationMode("positive"), GenerationMode("negative")
EXAMPLES = 30
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def operations(speaker: Running) -> dict[str, Operation]:
    spec = schemathesis.openapi.from_dict(httpx.get(f"{speaker.url}/openapi.json", timeout=TIMEOUT_S).json())
    described = [each.ok() for each in spec.get_all_operations() if isinstance(each, Ok)]
    return {operation.label: operation for operation in described}


OPERATIONS = [
    *("POST /v1/audio/speech", "GET /v1/audio/voices", "POST /v1/audio/voices", "DELETE /v1/audio/voices/{voice}"),
    *("GET /v1/audio/speech", "GET /v1/audio/models", "GET /v1/models", "GET /v1/models/{model}"),
    *("GET /v1/requests/{request_id}", "POST /v1/audio/speech/batch", "GET /v1/audio/files/{name}"),
    "POST /api/v1/services/aigc/multimodal-generation/generation",
    *("POST /v1/requests/{request_id}/playout", "GET /health", "GET /ready", "GET /metrics"),
]
WITHOUT_PARAMETERS = {name for name in OPERATIONS if "{" not in name and not name.startswith("POST")}
WITHOUT_PARAMETERS -= {"GET /v1/audio/speech", "GET /v1/audio/voices"}
"""Routes without parameters or body: one request is enough."""
BODIES = [name for name in OPERATIONS if name.startswith("POST") or name == "GET /v1/audio/speech"]
"""Routes for which invalid requests exist: only bodies and queries have constraints, path parameters are any string."""
NAMES = {"voice": "ryan", "speaker": "ryan", "model": "tiny", "language": "auto", "response_format": "opus"}
"""Generated names are rejected early; half of the requests use these instead and get further."""


def test_every_documented_route_is_tested(operations: dict[str, Operation]) -> None:
    assert set(operations) == set(OPERATIONS)


def run_requests(server: Running, operation: Operation, mode: GenerationMode) -> list[int]:
    """Generate and send requests; return the statuses of the responses."""
    statuses: list[int] = []

    @settings(
        max_examples=1 if operation.label in WITHOUT_PARAMETERS else EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode))
    def send(case: GeneratedCase) -> None:
        for fields in (case.body, case.query):
            if isinstance(fields, dict) and "input" in fields:
                fields["max_new_tokens"] = 1
                if len(statuses) % 2 and mode is VALID:
                    fields.update({name: known for name, known in NAMES.items() if name in fields})
        response = case.call(base_url=server.url, timeout=TIMEOUT_S)
        case.validate_response(response, checks=CHECKS)
        statuses.append(response.status_code)

    send()
    return statuses


@pytest.mark.parametrize("name", OPERATIONS)
def test_valid_random_requests(speaker: Running, operations: dict[str, Operation], name: str) -> None:
    statuses = run_requests(speaker, operations[name], VALID)
    assert statuses
    assert 200 in statuses or name != "POST /v1/audio/speech", f"no request succeeded: {statuses}"


@pytest.mark.parametrize("name", BODIES)
def test_invalid_random_requests(speaker: Running, operations: dict[str, Operation], name: str) -> None:
    statuses = run_requests(speaker, operations[name], INVALID)
    assert [each for each in statuses if 400 <= each < 500], f"no request was rejected: {statuses}"
    wait_for(lambda: slots_free(speaker.tts))
    with speaker.client().speak("As before.", voice="ryan", max_new_tokens=2) as body:
        assert len(body.read()) == 2 * 2 * 1920
