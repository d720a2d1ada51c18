"""What the master and workers of a load exchange beside commands and reports: spec, clocks, results.

Workers may be on other machines, so nothing goes through files. A result goes in parts, because heartbeats must come
between them. Only Locust processes import this.
"""

import time
import zlib
from collections.abc import Callable
from typing import Any, Final

import gevent
from gevent.event import AsyncResult
from locust.runners import MasterRunner, WorkerRunner

from bench.locust.clock import ROUNDS, WALL, Round, best, clock_id

SPEC: Final = "crucible_spec"
CLOCK: Final = "crucible_clock"
RESULT: Final = "crucible_result"
PART_BYTES: Final = 1 << 19
CLOCK_LIMIT_S: Final = 5.0
_PAUSE_S: Final = 0.01


class MasterExchange:
    """The master's side. ``take_result`` gets each worker's number and result, once it has come as a whole."""

    def __init__(self, runner: MasterRunner, take_result: Callable[[int, bytes], None]) -> None:
        self._runner = runner
        self._take_result = take_result
        self._parts: dict[int, list[bytes]] = {}
        runner.register_message(CLOCK, self._clock)
        runner.register_message(RESULT, self._result)

    def send_spec(self, spec: bytes) -> None:
        """Send it to all workers. Messages to a worker keep their order, so it comes before the start."""
        self._runner.send_message(SPEC, {"spec": spec})

    def _clock(self, msg: Any, **_: Any) -> None:
        data = {**msg.data, "master_us": WALL.own_us(), "clock_id": clock_id()}
        self._runner.send_message(CLOCK, data, client_id=msg.node_id)

    def _result(self, msg: Any, **_: Any) -> None:
        parts = self._parts.setdefault(msg.data["index"], [])
        parts.append(msg.data["data"])
        if len(parts) == msg.data["parts"]:
            self._take_result(msg.data["index"], zlib.decompress(b"".join(parts)))


class WorkerExchange:
    """The worker's side."""

    def __init__(self, runner: WorkerRunner) -> None:
        self.spec = b""
        self._runner = runner
        self._waiting: AsyncResult = AsyncResult()
        runner.register_message(SPEC, self._spec)
        runner.register_message(CLOCK, self._clock)

    def _spec(self, msg: Any, **_: Any) -> None:
        self.spec = msg.data["spec"]

    def _clock(self, msg: Any, **_: Any) -> None:
        received_us = WALL.own_us()
        self._waiting.set((Round(msg.data["sent_us"], msg.data["master_us"], received_us), msg.data["clock_id"]))

    def measure_clock(self) -> Round | None:
        """Return the shortest of several rounds to the master; None if its clock is the own one. Blocks a greenlet.

        :raises TimeoutError: the master did not respond.
        """
        rounds: list[Round] = []
        for _ in range(ROUNDS):
            self._waiting = AsyncResult()
            self._runner.send_message(CLOCK, {"sent_us": WALL.own_us()})
            try:
                each, masters = self._waiting.get(timeout=CLOCK_LIMIT_S)
            except gevent.Timeout as late:
                raise TimeoutError(f"the master sent no time within {CLOCK_LIMIT_S:g} s") from late
            if masters and masters == clock_id():
                return None
            rounds.append(each)
            time.sleep(_PAUSE_S)
        return best(rounds)

    def send_result(self, index: int, result: bytes) -> None:
        packed = zlib.compress(result, 1)
        parts = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)] or [b""]
        for each in parts:
            self._runner.send_message(RESULT, {"index": index, "parts": len(parts), "data": each})
            time.sleep(0)
