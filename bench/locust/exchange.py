"""Further values between master and workers: spec, clocks, files and results, beside commands and reports.

Workers may be on other machines, so nothing goes through files. A result goes in parts, because heartbeats must come
between them. So do the files of a worker that does not share the master's disk: the next part of one goes once the
master has written the one before, so that neither side holds more than a part. Only Locust processes import this.
"""

import os
import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import gevent
from gevent.event import AsyncResult
from locust.runners import MasterRunner, WorkerRunner

from bench.locust.clock import ROUNDS, WALL, Round, best, clock_id

SPEC: Final = "crucible_spec"
CLOCK: Final = "crucible_clock"
RESULT: Final = "crucible_result"
FILE: Final = "crucible_file"
PART_BYTES: Final = 1 << 19
CLOCK_LIMIT_S: Final = 5.0
FILE_LIMIT_S: Final = 30.0
"""Time that the master may need to write one part of a file."""
OPEN: Final = ".open"
"""The suffix of a file that is not whole yet."""
_PAUSE_S: Final = 0.01


class MasterExchange:
    """The master's side. ``take_result`` gets each worker's number and result, once it has come as a whole. Files of
    workers go to ``folder``."""

    def __init__(
        self, runner: MasterRunner, take_result: Callable[[int, bytes], None], folder: Path | None = None
    ) -> None:
        self._runner = runner
        self._take_result = take_result
        self._parts: dict[int, list[bytes]] = {}
        runner.register_message(CLOCK, self._clock)
        runner.register_message(RESULT, self._result)
        if folder is not None:
            self._files = FilesOfWorkers(folder)
            runner.register_message(FILE, self._file)

    def send_spec(self, spec: bytes) -> None:
        """Send it to all workers. Messages to a worker keep their order, so it comes before the start."""
        self._runner.send_message(SPEC, {"spec": spec})

    def _clock(self, msg: Any, **_: Any) -> None:
        data = {**msg.data, "master_us": WALL.own_us(), "clock_id": clock_id()}
        self._runner.send_message(CLOCK, data, client_id=msg.node_id)

    def _file(self, msg: Any, **_: Any) -> None:
        own = msg.data
        failure = self._files.take(own["name"], own["at"], own["data"], own["is_last"])
        self._runner.send_message(FILE, {"failure": failure}, client_id=msg.node_id)

    def _result(self, msg: Any, **_: Any) -> None:
        parts = self._parts.setdefault(msg.data["index"], [])
        parts.append(msg.data["data"])
        if len(parts) == msg.data["parts"]:
            self._take_result(msg.data["index"], zlib.decompress(b"".join(parts)))


class FilesOfWorkers:
    """Writes files of which the parts come one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, name: str, at: int, data: bytes, is_last: bool) -> str:
        """Write a part of a file from its byte ``at`` on. Return why it could not be written; empty if it was."""
        if not _NAME.fullmatch(name):
            return f"{name!r} is no name for a file of a worker"
        path = self._folder / name
        unfinished = path.with_name(name + OPEN)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with unfinished.open("r+b" if at else "wb") as file:
                if file.seek(0, os.SEEK_END) != at:
                    return f"a part of {name} is missing before its byte {at}"
                file.write(data)
            if is_last:
                unfinished.replace(path)
        except OSError as error:
            return f"{name} cannot be written there: {error.strerror}"
        return ""


_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class WorkerExchange:
    """The worker's side."""

    def __init__(self, runner: WorkerRunner) -> None:
        self.spec = b""
        self._runner = runner
        self._waiting: AsyncResult = AsyncResult()
        runner.register_message(SPEC, self._spec)
        runner.register_message(CLOCK, self._clock)
        self._written: AsyncResult = AsyncResult()
        runner.register_message(FILE, lambda msg, **_: self._written.set(msg.data["failure"]))

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

    def send_file(self, path: Path) -> None:
        """Send a file to the master, which keeps it under its name. Blocks a greenlet until all of it is written.

        :raises OSError: it cannot be read here or written there. :raises TimeoutError: the master did not respond.
        """
        size, at = path.stat().st_size, 0
        with path.open("rb") as file:
            while at == 0 or at < size:
                data = file.read(PART_BYTES)
                self._written = AsyncResult()
                is_last = at + len(data) >= size
                self._runner.send_message(FILE, {"name": path.name, "at": at, "data": data, "is_last": is_last})
                try:
                    failure = self._written.get(timeout=FILE_LIMIT_S)
                except gevent.Timeout as late:
                    raise TimeoutError(f"the master did not write {path.name} within {FILE_LIMIT_S:g} s") from late
                if failure:
                    raise OSError(failure)
                if is_last:
                    return
                at += len(data)

    def send_result(self, index: int, result: bytes) -> None:
        packed = zlib.compress(result, 1)
        parts = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)] or [b""]
        for part in parts:
            self._runner.send_message(RESULT, {"index": index, "parts": len(parts), "data": part})
            time.sleep(0)
