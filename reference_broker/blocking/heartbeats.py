"""The thread that sends a consumer's heartbeats between polls."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

THREAD_NAME: Final = "consumer-heartbeats"


@dataclass(slots=True)
class Heartbeats:
    """Calls ``beat`` in a thread every ``period_s``. The thread ends if that raises; ``failure`` is what it raised."""

    beat: Callable[[], None]
    period_s: float
    failure: Exception | None = None
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread. A second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread and waits for it. The caller must not hold a lock that ``beat`` waits for."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self.period_s):
            try:
                self.beat()
            except Exception as failure:
                self.failure = failure
                return
