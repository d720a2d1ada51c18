"""The target of a probe: a broker that runs already, or one that the probe has started and can start again."""

import time
from dataclasses import dataclass
from typing import Protocol

from bench.probe.broker import Address, NotKafka, meet

END_NOTICED_S = 2.0
"""A process that has closed its connections may take this long to end, when it writes a long report of its crash."""


class Processes(Protocol):
    """The processes of a broker that the probe has started."""

    def ended(self) -> str:
        """Return how a process ended, with the last lines of its log; empty while all run."""
        ...

    def restart(self) -> None:
        """Kill all that still run, and start them again. Raises TargetError."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """The broker at ``address``. ``processes`` are there if the probe has started it. ``keeps_data``: a restart loses
    nothing."""

    address: Address
    processes: Processes | None = None
    keeps_data: bool = False

    @property
    def can_restart(self) -> bool:
        return self.processes is not None and self.keeps_data

    def why_gone(self) -> str:
        """Return why the broker serves nobody any more, with its last log lines; empty if it serves."""
        if why := self._ended():
            return why
        try:
            meet(self.address)
        except NotKafka as error:
            return self._ended(END_NOTICED_S) or f"the broker serves nobody any more: {error}"
        return ""

    def _ended(self, within_s: float = 0.0) -> str:
        deadline = time.monotonic() + within_s
        while self.processes is not None:
            if (why := self.processes.ended()) or time.monotonic() >= deadline:
                return why
            time.sleep(0.02)
        return ""
