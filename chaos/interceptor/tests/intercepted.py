"""An interceptor with a driver that only records its calls, and frames for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from chaos.interceptor.interceptor import Interceptor
from chaos.interceptor.rules import HitCounter, Rule, SharedHitCounter
from reference_broker.core.events import Event, PeerReply, Reply, Request, Send
from reference_broker.ports.node_ports import Channel, Now
from reference_broker.wire.tags import Tag
from reports.rows import FaultRow
from scenarios.model import Match, Range

FETCH, PRODUCE, SNAPSHOT = 1, 0, 59
NOW = Now(1_000_000, 0)


class Ended(BaseException):
    """The effect of kill and power_off in these tests."""


@dataclass
class Log:
    """Implements FaultActions: every call, in order."""

    calls: list[tuple[object, ...]] = field(default_factory=list)

    @property
    def rows(self) -> list[FaultRow]:
        return [call[1] for call in self.calls if isinstance(call[1], FaultRow)]

    def report(self, row: FaultRow) -> None:
        self.calls.append(("report", row))

    def kill(self) -> None:
        self.calls.append(("kill", 0))
        raise Ended

    def lose_host(self) -> None:
        self.calls.append(("lose_host", 0))
        raise Ended

    def power_off(self) -> None:
        self.calls.append(("power_off", 0))
        raise Ended

    def pause(self, for_us: int) -> None:
        self.calls.append(("pause", for_us))

    def step_clock(self, by_ms: int) -> None:
        self.calls.append(("step_clock", by_ms))

    def discard_connection(self, connection: int) -> None:
        self.calls.append(("discard", connection))

    def lose_by_proxy(self, reply: Reply) -> None:
        self.calls.append(("lose_by_proxy", reply))

    def deliver_later(self, event: Event, delay_us: int) -> None:
        self.calls.append(("deliver_later", event, delay_us))

    def sync_fails(self, paths: Sequence[str]) -> None:
        self.calls.append(("sync_fails", *paths))

    def reply_later(self, reply: Reply, delay_us: int) -> None:
        self.calls.append(("reply_later", reply, delay_us))

    def reply_bytes(self, reply: Reply, frame: bytes) -> None:
        self.calls.append(("reply_bytes", reply, frame))

    def reply_cut(self, reply: Reply, start: bytes) -> None:
        self.calls.append(("reply_cut", reply, start))


def request(
    epoch: int = 3, connection: int = 1, client: str = "fetcher-1", session: int = 9, api: int = FETCH
) -> Request:
    return Request(connection, 5, api, 12, client, None, Tag(api, 12, client, session, epoch))


def reply(to: Request, error: int = 0) -> Reply:
    return Reply(to.connection, to.correlation_id, to.api_key, to.api_version, None, to.tag._replace(error=error))


def send(token: int, position: int = 0, api: int = SNAPSHOT, peer: int = 2) -> Send:
    tag = Tag(api, 1, "node-0", role="peer", position=position)
    return Send(peer, Channel.RAFT, token, api, 1, None, tag, 100, "node-0:here")


def peer_response(token: int, body: object = b"bytes") -> PeerReply:
    return PeerReply(2, Channel.RAFT, token, body)


def rule(kind: str, on: str = "request", match: Match | None = None, **more: object) -> Rule:
    """``nth`` is a number here, and times are microseconds."""
    nth = int(str(more.pop("nth", 1)))
    times = {f"{name[:-2]}s": int(str(more.pop(name))) / 1_000_000 for name in list(more) if name.endswith("_us")}
    fields = {"node": "any", "nth": Range(nth, nth), **times, **more}
    return Rule("rule", kind, on, match or Match(), **fields)  # type: ignore[arg-type]


def interceptor(
    log: Log, *rules: Rule, hit_counter: HitCounter | None = None, node: int = 0, role: str = ""
) -> Interceptor:
    return Interceptor(node, rules, log, Random(1), 0, hit_counter or SharedHitCounter(), lambda: role)
