"""Actions of the proxy for the rules of one node. They implement ``chaos.interceptor.actions.FaultActions``."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from chaos.frame_proxy.conversation import Conversation, bytes_of
from chaos.frame_proxy.node_front import NodeFront
from reference_broker.core.events import Event, Reply, Request
from reports.rows import FaultRow
from scenarios.fault_kinds import KINDS_OF_PROCESSES

NO_PROCESS: Final = 0
COMMAND_LIMIT_S: Final = 30.0


class ProxyFaultActions:
    """``process`` returns the process of the node: its ID, a process group as a negative number, the shell command that
    kills it, or NO_PROCESS if there was none or it has ended. ``report`` takes the evidence, and ``missed`` a fault
    whose process has ended: it does not count."""

    def __init__(
        self,
        front: NodeFront,
        loop: asyncio.AbstractEventLoop,
        process: Callable[[], int | str],
        report: Callable[[FaultRow], None],
        missed: Callable[[FaultRow], None] = lambda _: None,
    ) -> None:
        self._front = front
        self._loop = loop
        self._process = process
        self._has_paused = False
        self._last_row: FaultRow | None = None
        self._report = report
        self._missed = missed

    def report(self, row: FaultRow) -> None:
        self._last_row = row
        if row.kind in KINDS_OF_PROCESSES and self._process() == NO_PROCESS:
            self._missed(row)
        else:
            self._report(row)

    def kill(self) -> None:
        """SIGKILL. All requests without a response are lost with their connections."""
        if self._process() != NO_PROCESS:
            self._signal(signal.SIGKILL)
            self._front.close()

    def pause(self, for_us: int) -> None:
        if self._process() == NO_PROCESS:
            return
        self._has_paused = True
        self._signal(signal.SIGSTOP)
        self._loop.call_later(for_us / 1e6, self.wake)

    def wake(self) -> None:
        """End a pause. The proxy's end does so, too: a stopped process would wait for ever."""
        if self._has_paused:
            self._has_paused = False
            self._signal(signal.SIGCONT)

    def discard_connection(self, connection: int) -> None:
        conversation = self._front.conversations.get(connection)
        if conversation is not None:
            conversation.discard()

    def lose_by_proxy(self, reply: Reply) -> None:
        conversation = self._front.conversations.get(reply.connection)
        if conversation is not None and self._last_row is not None:
            conversation.hold_response()
            self._front.held.hold(self._last_row, reply)

    def deliver_later(self, event: Event, delay_us: int) -> None:
        if isinstance(event, Request):
            held = self._front.conversations.get(event.connection)
            if held is not None:
                held.hold_request()
        self._loop.call_later(delay_us / 1e6, self._front.late, event)

    def reply_later(self, reply: Reply, delay_us: int) -> None:
        conversation = self._front.conversations.get(reply.connection)
        if conversation is not None:
            conversation.hold_response()
            self._loop.call_later(delay_us / 1e6, conversation.release_response, bytes_of(reply))

    def reply_bytes(self, reply: Reply, frame: bytes) -> None:
        self._write(reply, frame)

    def reply_cut(self, reply: Reply, start: bytes) -> None:
        conversation = self._write(reply, start)
        if conversation is not None:
            conversation.end("a rule truncated the response")

    # No rule of the proxy may need what follows (``rules_file``).

    def power_off(self) -> None:
        raise AssertionError("a proxy has no machine to switch off")

    def lose_host(self) -> None:
        raise AssertionError("a proxy cannot silence the links of a node")

    def step_clock(self, by_ms: int) -> None:
        raise AssertionError(f"a proxy has no clock to step by {by_ms} ms")

    def sync_fails(self, paths: Sequence[str]) -> None:
        raise AssertionError(f"a proxy has no disk with {len(paths)} files")

    def _write(self, reply: Reply, frame: bytes) -> Conversation | None:
        conversation = self._front.conversations.get(reply.connection)
        if conversation is not None:
            conversation.write(frame)
        return conversation

    def _signal(self, number: signal.Signals) -> None:
        process = self._process()
        if process == NO_PROCESS:
            return
        if isinstance(process, str):
            # The loop waits, so that nothing more of this node passes.
            words = ["sh", "-c", process]
            with suppress(subprocess.TimeoutExpired):  # The command is the user's, and so is its result.
                subprocess.run(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=COMMAND_LIMIT_S, check=False
                )
            return
        with suppress(ProcessLookupError):
            os.kill(process, number)
