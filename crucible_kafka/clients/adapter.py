"""The process of an adapter: requests to it, its replies and events, its limits, and its end.

A thread reads what the adapter writes. A line that is no message, too many messages, or the end of the process makes
the adapter fail: each call raises AdapterFailed from then on. ``end`` leaves nothing behind, whatever the adapter does.
"""

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

from crucible_kafka.clients.case import AdapterFailed
from crucible_kafka.clients.protocol import (
    SCHEMA_VERSION,
    AdapterInfo,
    AnyEvent,
    InvalidMessage,
    Reply,
    Request,
    decode,
    encode,
)

HELLO_LIMIT_S: Final = 60.0
"""The longest wait for the reply to hello. A virtual machine may have to start on a loaded machine."""
MAX_LINE_BYTES: Final = 8 << 20
MAX_BYTES: Final = 128 << 20
"""The limit of what one process may write."""
MAX_LINES_AHEAD: Final = 200_000
"""Limit of the number of unread events."""
KEPT_ERROR_LINES: Final = 40
SHOWN_ERROR_LINES: Final = 3
END_S: Final = 3.0
"""The wait after the end of its input, and again after SIGTERM, before an adapter is ended by SIGKILL."""
MARK: Final = "CRUCIBLE_ADAPTER_PROCESS"
"""An environment variable by which the processes of an adapter are found, also those in other sessions."""


@dataclass(frozen=True, slots=True)
class AdapterCommand:
    """The command that starts an adapter."""

    words: str
    """The command as the user wrote it."""
    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class ReplyMissing(Exception):  # noqa: N818 - says what happened
    """No reply came within the limit: the client hangs, or its adapter."""


@dataclass(slots=True)
class _Waiting:
    arrived: threading.Event = field(default_factory=threading.Event)
    reply: Reply | None = None


class AdapterProcess:
    """One process of an adapter, from its start on. ``about`` is its reply to hello."""

    def __init__(self, command: AdapterCommand) -> None:
        """Start it and say hello. Raise AdapterFailed."""
        self._mark = uuid4().hex
        self._numbers = count(1)
        self._lock = threading.Condition()
        self._waiting: dict[int, _Waiting] = {}
        self._events: deque[tuple[float, AnyEvent]] = deque()
        self._errors: deque[str] = deque(maxlen=KEPT_ERROR_LINES)
        self._failure = ""
        self._is_ending = False
        try:
            self._process = subprocess.Popen(
                command.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **command.environment, MARK: self._mark},
                start_new_session=True,
            )
        except OSError as error:
            raise AdapterFailed(f"The adapter cannot be started: {command.argv[0]}: {error.strerror}.") from error
        self._threads = [
            threading.Thread(target=self._read, name="adapter-output", daemon=True),
            threading.Thread(target=self._read_errors, name="adapter-errors", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        try:
            self.about = self._hello()
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def failure(self) -> str:
        """The reason why the adapter failed, in one sentence; empty while it has not."""
        return self._failure

    def _hello(self) -> AdapterInfo:
        from msgspec import ValidationError, convert

        from crucible_kafka.clients.protocol import Hello

        try:
            reply = self.call(Hello(id=self.next_id()), HELLO_LIMIT_S)
        except ReplyMissing:
            raise AdapterFailed(f"The adapter has not replied to hello within {HELLO_LIMIT_S:g} s.") from None
        if reply.error is not None:
            raise AdapterFailed(f"The adapter refused hello: {reply.error.name} {reply.error.message}".strip() + ".")
        try:
            about = convert(reply.result, AdapterInfo)
        except ValidationError as wrong:
            raise AdapterFailed(f"The adapter's reply to hello is not complete: {wrong}.") from None
        if about.schema != SCHEMA_VERSION:
            raise AdapterFailed(
                f"The adapter speaks version {about.schema} of the protocol, and this is {SCHEMA_VERSION}: adapt it "
                "(docs/client-adapters.md)."
            )
        return about

    # Requests

    def next_id(self) -> int:
        return next(self._numbers)

    def call(self, request: Request, limit_s: float) -> Reply:
        """Send a request and return the reply. Raise ReplyMissing after ``limit_s``, and AdapterFailed."""
        return self.wait(self.send(request), request, limit_s)

    def send(self, request: Request) -> "_Waiting":
        """Send a request without waiting for the reply, which ``wait`` returns."""
        waiting = _Waiting()
        with self._lock:
            self._check()
            self._waiting[request.id] = waiting
        assert self._process.stdin is not None, "it was started with pipes"
        with suppress(OSError):  # It has ended, and the thread that reads says so.
            self._process.stdin.write(encode(request) + b"\n")
            self._process.stdin.flush()
        return waiting

    def wait(self, waiting: "_Waiting", request: Request, limit_s: float) -> Reply:
        arrived = waiting.arrived.wait(limit_s)
        with self._lock:
            self._waiting.pop(request.id, None)
            if waiting.reply is not None:
                return waiting.reply
            self._check()
        assert not arrived, "a reply without a reply"
        raise ReplyMissing

    def take_events(self) -> list[tuple[float, AnyEvent]]:
        """Return the events since the last call, each with its Unix time."""
        with self._lock:
            events = list(self._events)
            self._events.clear()
            return events

    def _check(self) -> None:
        if self._failure:
            raise AdapterFailed(self._failure)

    # What it writes

    def _read(self) -> None:
        assert self._process.stdout is not None, "it was started with pipes"
        output: IO[bytes] = self._process.stdout
        total_bytes = 0
        while line := output.readline(MAX_LINE_BYTES + 1):
            total_bytes += len(line)
            if len(line) > MAX_LINE_BYTES:
                return self._fail(f"The adapter wrote a line of more than {MAX_LINE_BYTES >> 20} MB.")
            if total_bytes > MAX_BYTES:
                return self._fail(f"The adapter floods: it wrote more than {MAX_BYTES >> 20} MB.")
            if not line.strip():
                continue
            try:
                message = decode(line)
            except InvalidMessage as wrong:
                return self._fail(f"The adapter wrote {wrong}.")
            if not self._arrived(message):
                return None
        return self._fail(self._why_ended())

    def _arrived(self, message: Reply | AnyEvent) -> bool:
        """Deliver a message. Return False if the adapter has failed by it."""
        with self._lock:
            if not isinstance(message, Reply):
                self._events.append((time.time(), message))
                is_flood = len(self._events) > MAX_LINES_AHEAD
            else:
                is_flood = False
                waiting = self._waiting.get(message.id)
                if waiting is not None:
                    waiting.reply = message
                    waiting.arrived.set()
        if is_flood:
            self._fail(f"The adapter floods: {MAX_LINES_AHEAD:,} events came that nothing had requested.")
        return not is_flood

    def _why_ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._threads[1].join(END_S)
        code = self._process.returncode
        how = (
            "closed its output, and still runs"
            if code is None
            else f"was ended by {signal.Signals(-code).name}"
            if code < 0
            else f"exited with code {code}"
        )
        last = "; ".join(list(self._errors)[-SHOWN_ERROR_LINES:])
        return f"The adapter {how}{f': {last}' if last else ''}."

    def _fail(self, sentence: str) -> None:
        with self._lock:
            if self._is_ending:
                return
            self._failure = self._failure or sentence
            for waiting in self._waiting.values():
                waiting.arrived.set()
        self._signal(signal.SIGKILL)  # What it still writes would block it, and nobody reads it any more.

    def _read_errors(self) -> None:
        assert self._process.stderr is not None, "it was started with pipes"
        while line := self._process.stderr.readline(1 << 16):
            text = line.decode(errors="replace").rstrip()
            if text:
                self._errors.append(text)

    def error_lines(self) -> list[str]:
        """Return the newest lines of its standard error."""
        return list(self._errors)

    # Its end

    def kill(self) -> None:
        """End the process by SIGKILL, as a machine that fails would."""
        self._is_ending = True
        self._signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> str:
        """End it: the end of its input, then SIGTERM, then SIGKILL. Return what was wrong with its end, if anything."""
        self._is_ending = True
        assert self._process.stdin is not None, "it was started with pipes"
        with suppress(OSError):
            self._process.stdin.close()
        if not self._has_ended():
            self._signal(signal.SIGTERM)
            if not self._has_ended():
                self._signal(signal.SIGKILL)
                self._process.wait()
        self._signal(signal.SIGKILL)  # Whatever is left in its session.
        left = _end_marked(self._mark, self._process.pid)
        for thread in self._threads:
            thread.join(END_S)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None and not any(thread.is_alive() for thread in self._threads):
                stream.close()
        return f"it left {left} process{'es' * (left > 1)} behind" if left else ""

    def _has_ended(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
            return True
        return False

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def _end_marked(mark: str, pid: int) -> int:
    """End the processes that have inherited the mark, and return their number. Only Linux shows environments."""
    wanted = f"{MARK}={mark}".encode()
    found = 0
    for each in Path("/proc").glob("[0-9]*") if Path("/proc/self/environ").exists() else ():
        with suppress(OSError):
            if int(each.name) != pid and wanted in (each / "environ").read_bytes():
                os.kill(int(each.name), signal.SIGKILL)
                found += 1
    return found


def adapter_info(command: AdapterCommand) -> AdapterInfo:
    """Start an adapter, return what it says of itself, and end it. Raise AdapterFailed."""
    process = AdapterProcess(command)
    try:
        return process.about
    finally:
        process.end()


__all__ = ["AdapterCommand", "AdapterProcess", "ReplyMissing", "adapter_info"]
