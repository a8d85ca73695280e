"""Requests that schemathesis makes up from the server's own description, right and wrong ones: answered as described.

No 5xx, no hang, nothing undescribed; and the server speaks as before afterwards. What is spoken is kept to one frame.
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
Made = Case[Any]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
RIGHT, WRONG = GenerationMode("positive"), GenerationMode("negative")
EXAMPLES = 30
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def operations(speaker: Running) -> dict[str, Operation]:
    spec = schemathesis.openapi.from_dict(httpx.get(f"{speaker.url}/openapi.json", timeout=TIMEOUT_S).json())
    described = [each.ok() for each in spec.get_all_operations() if isinstance(each, Ok)]
    return {operation.label: operation for operation in described}


OPERATIONS = [
    *("POST /v1/audio/speech", "GET /v1/audio/voices", "POST /v1/audio/voices", "DELETE /v1/audio/voices/{voice}"),
    *("GET /v1/models", "GET /v1/models/{model}", "GET /v1/requests/{request_id}"),
    *("POST /v1/requests/{request_id}/playout", "GET /health", "GET /ready", "GET /metrics"),
]
PLAIN = {name for name in OPERATIONS if "{" not in name and not name.startswith("POST")}
"""They take nothing."""
BODIES = [name for name in OPERATIONS if name.startswith("POST")]
"""Only a body can break the description: any word may stand in a path."""
NAMES = {"voice": "ryan", "speaker": "ryan", "model": "tiny", "language": "auto", "response_format": "opus"}
"""Made up names are refused at once; with these in their place half of the requests get further."""


def test_every_route_of_the_description_is_tried(operations: dict[str, Operation]) -> None:
    assert set(operations) == set(OPERATIONS)


def ask(server: Running, operation: Operation, mode: GenerationMode) -> list[int]:
    """Make requests up and send them; the statuses of the answers."""
    seen: list[int] = []

    @settings(
        max_examples=1 if operation.label in PLAIN else EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(mode))
    def one(case: Made) -> None:
        if isinstance(case.body, dict) and "input" in case.body:
            case.body["max_new_tokens"] = 1
            if len(seen) % 2 and mode is RIGHT:
                case.body.update({name: known for name, known in NAMES.items() if name in case.body})
        response = case.call(base_url=server.url, timeout=TIMEOUT_S)
        case.validate_response(response, checks=CHECKS)
        seen.append(response.status_code)

    one()
    return seen


@pytest.mark.parametrize("name", OPERATIONS)
def test_requests_that_fit_the_description(speaker: Running, operations: dict[str, Operation], name: str) -> None:
    statuses = ask(speaker, operations[name], RIGHT)
    assert statuses
    assert 200 in statuses or name != "POST /v1/audio/speech", f"none was spoken: {statuses}"


@pytest.mark.parametrize("name", BODIES)
def test_requests_that_do_not(speaker: Running, operations: dict[str, Operation], name: str) -> None:
    statuses = ask(speaker, operations[name], WRONG)
    assert [each for each in statuses if 400 <= each < 500], f"none was refused: {statuses}"
    wait_for(lambda: slots_free(speaker.tts))
    with speaker.client().speak("As before.", voice="ryan", max_new_tokens=2) as body:
        assert len(body.read()) == 2 * 2 * 1920
