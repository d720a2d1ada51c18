"""The schedule of an open loop: slot n is due at ``start + n * interval``, whatever happened to the slots before."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.fleet.behaviours.script import Script, Steps

MAX_UNSENT_RECORDED: Final = 100_000
"""At most this many of the slots that were overdue and never sent are recorded."""


@dataclass(slots=True)
class OpenLoop:
    """``interval_us`` 0 means that every slot is due at once. ``max_slots`` 0 means that only Stopping ends the loop.
    ``slots`` counts the slots that were begun. ``f`` is what the history calls a slot that was never sent."""

    script: Script
    interval_us: int
    f: str
    max_slots: int = 0
    slots: int = 0

    def run(self, play: Callable[[int], Steps[None]]) -> Steps[None]:
        """Plays each slot when it is due, one after the other. ``play`` gets the time at which its slot was due."""
        script = self.script
        start_us = script.first_due_us(self.interval_us)
        while not script.stopping and (self.max_slots == 0 or self.slots < self.max_slots):
            due_us = start_us + self.slots * self.interval_us
            if script.now.mono_us < due_us:
                yield from script.sleep_until(due_us)
                continue
            self.slots += 1
            yield from play(due_us)
        if script.stopping_at_us is not None and self.interval_us:
            self._record_unsent(start_us, script.stopping_at_us)

    def _record_unsent(self, start_us: int, end_us: int) -> None:
        """Records slots as failed that were overdue by an interval at the end of the load and were never sent."""
        unsent = range(start_us + self.slots * self.interval_us, end_us - self.interval_us, self.interval_us)
        for due_us in unsent[:MAX_UNSENT_RECORDED]:
            self.script.journal.end(self.script.journal.begin(self.f, due_us, sent=False), "fail", "not_sent")
