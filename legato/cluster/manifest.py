"""The Serve configuration file, as YAML. JSON is a subset of YAML; the values of the settings are written as JSON.

Without Ray, so that `legato cluster config` also works where Ray is not installed.
"""

from __future__ import annotations

import json
from typing import Any

from legato.cluster.settings import ReplicaSettings

IMPORT_PATH = "legato.cluster.application:build"


def serve_config(settings: ReplicaSettings, *, replicas: int, max_replicas: int | None, host: str, port: int) -> str:
    """The file for `serve deploy`, which is also the `serveConfigV2` of a RayService."""
    arguments: dict[str, Any] = {"replicas": replicas, **settings.to_arguments()}
    if max_replicas is not None:
        arguments["max_replicas"] = max_replicas
    lines = [
        "# For `serve deploy`, or the field serveConfigV2 of a RayService. Written by `legato cluster config`.",
        "proxy_location: EveryNode",
        "http_options:",
        f"  host: {json.dumps(host)}",
        f"  port: {port}",
        "logging_config:",
        "  enable_access_log: false",
        "applications:",
        "  - name: legato",
        "    route_prefix: /",
        f"    import_path: {IMPORT_PATH}",
        "    args:",
        *(f"      {name}: {json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items()),
    ]
    return "\n".join(lines) + "\n"
