"""Commands to the workers of a run: it sends commands, and waits for the sums of their reports
(``bench/locust/messages.py``)."""

import math
import time
from typing import Final

from bench.load.faults import FaultPlayer
from bench.load.options import Progress
from bench.load.progress import line
from bench.locust.processes import LocustProcesses

WAIT_REPORTED_S: Final = 5.0
"""Interval at which a wait for the clients is reported."""
POLL_S: Final = 0.05
MESSAGE: Final = "MESSAGE_TOO_LARGE"
LIST: Final = "RECORD_LIST_TOO_LARGE"


class LateError(Exception):
    """The clients did not do something in time. The message is the end of a sentence."""


class TooLargeError(Exception):
    """A broker has refused a batch as too large, so it refuses all of the load. The message is the error's name."""


class LoadWorkers:
    """The workers' leader. ``progress`` gets lines for the terminal. With ``records_per_s`` 0 there is no schedule."""

    def __init__(self, locust: LocustProcesses, records_per_s: float, progress: Progress) -> None:
        self._locust = locust
        self._records_per_s = records_per_s
        self._progress = progress
        self._last: dict[str, int] = {}  # the last report that was looked at

    def command(self, command: str) -> None:
        self._locust.send_command(command)

    def counts(self) -> tuple[int, int] | None:
        """Return the records acknowledged and read so far; None if nothing is known yet."""
        report = self._report()
        return None if report is None else (report["acknowledged"], report["read"])

    def report_progress_until(
        self, until_s: float, phase: str, faults: FaultPlayer | None = None, start_s: float = math.inf
    ) -> None:
        """Report progress once a second, until the time has come. ``faults`` are injected meanwhile, counted from
        ``start_s``, when the load started.

        :raises TooLargeError: a broker refuses the batches.
        """
        before, since_s = self._last, time.monotonic()
        while (left_s := until_s - time.monotonic()) > 0:
            pause_s = min(1.0, left_s)
            if faults is not None:
                faults.do_due(time.monotonic() - start_s)
                pause_s = min(pause_s, start_s + faults.next_s - time.monotonic())
            time.sleep(max(0.0, pause_s))
            report = self._report()
            if report is None or time.monotonic() < since_s + min(1.0, left_s):
                continue
            text = line(before, report, self._records_per_s)
            before = self._last = report
            since_s = time.monotonic()
            self._progress(f"{phase}, {max(0.0, left_s - 1):.0f} s left: {text}")

    def await_sum(self, key: str, limit_s: float, what: str, value: int = 0) -> None:
        """Wait until the workers' sum of ``key`` is ``value``.

        :raises LateError: the clients did not do ``what`` in time. :raises TooLargeError: a broker refuses the batches.
        """
        start_s = reported_s = time.monotonic()
        end_s, times_seen = start_s + limit_s, 0
        while time.monotonic() < end_s:
            report = self._report()
            if report is not None and time.monotonic() >= reported_s + WAIT_REPORTED_S:
                reported_s = time.monotonic()
                left = f"{abs(report[key] - value):,} left, for up to {end_s - reported_s:.0f} s more"
                self._progress(f"waits until the clients {what}: {left}")
            if report is not None and report != self._last:
                self._last = report
                times_seen = times_seen + 1 if report[key] == value else 0
                # The first report may be older than the command. A worker sends nothing once it is closed.
                if times_seen == 2 or (times_seen and key == "closed"):
                    return
            time.sleep(POLL_S)
        raise LateError(f"the clients did not {what} within {limit_s:g} s")

    def _report(self) -> dict[str, int] | None:
        report = self._locust.report()
        for key, error in (("too_large", MESSAGE), ("list_too_large", LIST)):
            if report is not None and report.get(key):
                raise TooLargeError(error)
        return report
