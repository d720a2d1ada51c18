"""Notes which logs changed, so that a check looks only at those.

It replaces the slots of the log's class by properties that note each assignment.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from reference_broker.log.log_view import LogView

NUMBERS = ("log_start_offset", "high_watermark", "log_end_offset", "cleaned_offset", "local_log_start_offset")


class TouchedLogs:
    """Collects the logs of which one of NUMBERS was set while inside ``noted``."""

    def __init__(self) -> None:
        self._touched: dict[LogView, None] = {}

    def taken(self) -> tuple[LogView, ...]:
        """Returns the logs that changed since the last call, in the order of their first change."""
        if not self._touched:
            return ()
        taken = tuple(self._touched)
        self._touched.clear()
        return taken

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Inside the block the logs of this process note their changes here. At its end the class gets its slots
        back."""
        slots = {name: LogView.__dict__[name] for name in NUMBERS}
        for name, slot in slots.items():
            setattr(LogView, name, property(slot.__get__, _noting(slot.__set__, self._touched)))
        try:
            yield
        finally:
            for name, slot in slots.items():
                setattr(LogView, name, slot)


def _noting(set_slot: Callable[[Any, int], None], touched: dict[LogView, None]) -> Callable[[Any, int], None]:
    def note(log: Any, value: int) -> None:
        set_slot(log, value)
        touched[log] = None

    return note
