"""A thread that reads the folder of uploaded voices regularly, for changes by other processes.

It belongs to one running application. A disk that hangs stops this thread only: lists and lookups use memory.
"""

from __future__ import annotations

import threading
from types import TracebackType

from legato.server.voices import VoiceFolder

PERIOD_S = 0.5
"""A voice uploaded by another process is known after this time at most, plus the time of reading it."""


class VoiceWatcher:
    """Refresh `voices` every `period_s` seconds while the context is open."""

    def __init__(self, voices: VoiceFolder, period_s: float = PERIOD_S) -> None:
        self._voices = voices
        self._period_s = period_s
        self._stop = threading.Event()
        # A daemon: a hanging disk must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="legato-voices", daemon=True)

    def __enter__(self) -> VoiceWatcher:
        if self._voices.stores:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self._voices.refresh()
