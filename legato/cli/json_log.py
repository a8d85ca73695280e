"""Log lines as JSON objects, one a line, for log collectors. Holds no state."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone


class JsonFormatter(logging.Formatter):
    """Formats a record with `time`, `level`, `logger` and `message`, its extra `fields`, and the traceback, if any."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a line feed."""
        body: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            body |= {name: value for name, value in fields.items() if value is not None}
        if record.exc_info:
            body["traceback"] = self.formatException(record.exc_info)
        return json.dumps(body, ensure_ascii=True, default=str)


def log_as_json() -> None:
    """Make all handlers of the root logger write JSON."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter())
