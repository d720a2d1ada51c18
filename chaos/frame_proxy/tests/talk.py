"""A conversation of the proxy without sockets: both ends are lists of what was written."""

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from chaos.frame_proxy.conversation import Conversation
from chaos.frame_proxy.fault_actions import ProxyFaultActions
from chaos.frame_proxy.frames import MAX_FRAME_BYTES, Bytes
from chaos.frame_proxy.node_front import Address, NodeFront
from chaos.frame_proxy.recorder import Entry, FrameRecorder, RequestLog
from chaos.interceptor.held_responses import LostKeys
from chaos.interceptor.rules import Rule, SharedHitCounter
from reports.rows import FaultRow

SHOWN_PORT = 40_000


class End:
    """Implements Pipe."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.reads = True
        self.ended = ""

    @property
    def got(self) -> bytes:
        return b"".join(self.written)

    def write(self, data: Bytes) -> None:
        assert not self.ended, "something was written to an end that is closed"
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        assert self.reads, "asyncio warns of what is paused twice"
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = self.ended or "aborted"

    def is_closing(self) -> bool:
        return bool(self.ended)


class Later:
    """An event loop whose callers wait until ``pass_time``."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, Callable[..., None], tuple[object, ...]]] = []

    def call_later(self, delay_s: float, action: Callable[..., None], *words: object) -> None:
        self._waiting.append((delay_s, action, words))

    def pass_time(self) -> None:
        waiting, self._waiting = self._waiting, []
        for _, action, words in sorted(waiting, key=lambda each: each[0]):
            action(*words)


class ProxyServices:
    """Implements ProxyServices. Node n is advertised to clients as ``proxy``, SHOWN_PORT + n."""

    def __init__(self, most_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.log = RequestLog()
        self.recorder: FrameRecorder | None = None
        self.most_frame_bytes = most_frame_bytes
        self.complaints: list[str] = []
        self.lingering: list[tuple[float, Callable[[], None]]] = []
        self._last = 0

    def now_us(self) -> int:
        return 0

    def advertised(self, node_id: int, host: str, port: int) -> tuple[str, int]:  # noqa: ARG002
        return "proxy", SHOWN_PORT + node_id

    def next_connection(self) -> int:
        self._last += 1
        return self._last

    def learn(self, topics: Iterable[Any]) -> None:
        """Learn nothing."""

    def role_of(self, node: int) -> str:  # noqa: ARG002
        return ""

    def complain(self, sentence: str) -> None:
        self.complaints.append(sentence)

    def lost_by_proxy(self, node: int, lost: LostKeys) -> None:
        """Discard the report."""

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.lingering.append((delay_s, action))


class Talk:
    """One client that talks with one node through the proxy."""

    def __init__(self, *rules: Rule, most_frame_bytes: int = MAX_FRAME_BYTES, process: int = 0) -> None:
        self.rows: list[FaultRow] = []
        self.missed: list[FaultRow] = []
        self.services = ProxyServices(most_frame_bytes)
        self.later = Later()
        self.front = NodeFront(self.services, 0, Address("node", 9092), SharedHitCounter())
        self.front.take_actions(
            ProxyFaultActions(self.front, self.later, lambda: process, self.rows.append, self.missed.append),  # type: ignore[arg-type]
            Random(1),
        )
        for rule in rules:
            self.front.add(rule)
        self.client, self.node = End(), End()
        self.conversation: Conversation = self.front.begin(self.client)  # type: ignore[arg-type]

    def connect(self) -> "Talk":
        self.conversation.reached_node(self.node)
        return self

    @property
    def entries(self) -> Sequence[Entry]:
        return self.services.log.since(0)

    @property
    def logged(self) -> list[str]:
        return [entry.what for entry in self.entries]
