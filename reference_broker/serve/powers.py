"""What a hook can ask the live driver to do to its own node."""

import os
import signal
from dataclasses import dataclass

from reference_broker.core.effects import Reply
from reference_broker.core.events import Event
from reference_broker.serve.clock import Clock
from reference_broker.serve.driver import Driver
from reference_broker.serve.log_lines import LogLines


@dataclass(slots=True)
class DriverPowers:
    """The maker of the hooks gets it before the node exists. It can be used once the node runs."""

    _clock: Clock
    _log: LogLines
    driver: Driver | None = None

    def kill(self) -> None:
        """Sends SIGKILL to this process. Appended bytes stay in the page cache."""
        self._log.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def power_off(self) -> None:
        """The same as ``kill``, since a process cannot take the machine's page cache with it."""
        self.kill()

    def pause(self, for_us: int) -> None:
        """SIGSTOP. Whoever started this process sends SIGCONT after ``for_us``; it learns that from the evidence."""
        del for_us
        self._log.flush()
        os.kill(os.getpid(), signal.SIGSTOP)

    def step_clock(self, by_ms: int) -> None:
        self._clock.wall_offset_ms += by_ms

    def slow_syncs(self, by_ms: int, names_only: bool = False) -> None:
        """Makes each sync from now on take ``by_ms`` longer. With ``names_only`` only the syncs of folders do."""
        driver = self._running()
        driver.syncs.delay_s = 0 if names_only else by_ms / 1000
        driver.disk.folder_delay_s = by_ms / 1000 if names_only else 0

    @property
    def syncs_delayed(self) -> int:
        """How many syncs were delayed so far."""
        return self._running().syncs.delayed + self._running().disk.folders_delayed

    def discard_connection(self, connection: int) -> None:
        self._running().discard_connection(connection)

    def deliver_later(self, event: Event, delay_us: int) -> None:
        self._running().deliver_later(event, delay_us)

    def reply_later(self, reply: Reply, delay_us: int) -> None:
        self._running().reply_later(reply, delay_us)

    def reply_bytes(self, reply: Reply, frame: bytes) -> None:
        self._running().reply_bytes(reply, frame)

    def reply_cut(self, reply: Reply, start: bytes) -> None:
        self._running().reply_cut(reply, start)

    def _running(self) -> Driver:
        assert self.driver is not None, "a hook asked for something before its node was started"
        return self.driver
