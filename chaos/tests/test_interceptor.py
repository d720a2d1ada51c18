"""The interceptor's rules, as tables: which frame is hit, what happens then, and what is left as evidence."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chaos.claims import Claims, FileClaims, SharedClaims
from chaos.interceptor import Interceptor
from chaos.rules import Counter, Rule, rules_for
from reference_broker.core.effects import Close, Effect, Note, Reply, Send
from reference_broker.core.events import Closed, Event, Opened, PeerDown, PeerReply, Request
from reference_broker.ports.channels import Channel
from reference_broker.ports.disk import DiskError
from reference_broker.ports.memory_disk import MemoryDisk
from reference_broker.ports.now import Now
from reference_broker.wire.tags import Tag
from reports.rows import FaultRow
from scenarios.loader import find
from scenarios.model import Fault, Match, Range

FETCH, PRODUCE = 1, 0
NOW = Now(1_000_000, 0)


class Ended(BaseException):
    """What kill and power_off do in these tests."""


@dataclass
class Log:
    """Implements Powers: everything that was asked for, in order."""

    asked: list[tuple[object, ...]] = field(default_factory=list)

    @property
    def rows(self) -> list[FaultRow]:
        return [each[1] for each in self.asked if isinstance(each[1], FaultRow)]

    def report(self, row: FaultRow) -> None:
        self.asked.append(("report", row))

    def kill(self) -> None:
        self.asked.append(("kill", 0))
        raise Ended

    def power_off(self) -> None:
        self.asked.append(("power_off", 0))
        raise Ended

    def pause(self, for_us: int) -> None:
        self.asked.append(("pause", for_us))

    def step_clock(self, by_ms: int) -> None:
        self.asked.append(("step_clock", by_ms))

    def discard_connection(self, connection: int) -> None:
        self.asked.append(("discard", connection))

    def deliver_later(self, event: Event, delay_us: int) -> None:
        self.asked.append(("deliver_later", event, delay_us))

    def sync_fails(self, paths: Sequence[str]) -> None:
        self.asked.append(("sync_fails", *paths))

    def reply_later(self, reply: Reply, delay_us: int) -> None:
        self.asked.append(("reply_later", reply, delay_us))

    def reply_bytes(self, reply: Reply, frame: bytes) -> None:
        self.asked.append(("reply_bytes", reply, frame))


def request(
    epoch: int = 3, connection: int = 1, client: str = "fetcher-1", session: int = 9, api: int = FETCH
) -> Request:
    return Request(connection, 5, api, 12, client, None, Tag(api, 12, client, session, epoch))


def reply(to: Request, error: int = 0) -> Reply:
    return Reply(to.connection, to.correlation_id, to.api_key, to.api_version, None, to.tag._replace(error=error))


def rule(kind: str, on: str = "request", match: Match | None = None, **more: object) -> Rule:
    """``nth`` is a number here, and times are microseconds."""
    nth = int(str(more.pop("nth", 1)))
    times = {f"{name[:-2]}s": int(str(more.pop(name))) / 1_000_000 for name in list(more) if name.endswith("_us")}
    fields = {"node": "any", "nth": Range(nth, nth), **times, **more}
    return Rule("rule", kind, on, match or Match(), **fields)  # type: ignore[arg-type]


def interceptor(log: Log, *rules: Rule, claims: Claims | None = None, node: int = 0, role: str = "") -> Interceptor:
    return Interceptor(node, rules, log, Random(1), 0, claims or SharedClaims(), lambda: role)


@pytest.mark.parametrize(
    ("match", "hit"),
    [
        (Match(), True),
        (Match(api=FETCH), True),
        (Match(api=PRODUCE), False),
        (Match(client_id="fetcher-*"), True),
        (Match(client_id="producer-*"), False),
        (Match(session=True), True),
        (Match(session=False), False),
        (Match(session_epoch=Range(3, 3)), True),
        (Match(session_epoch=Range(4, 9)), False),
        (Match(error=0), True),
        (Match(error=71), False),
        (Match(role="peer"), False),
        (Match(position=Range(0, 10)), False),
        (
            Match(api=FETCH, client_id="fetcher-1", session=True, session_epoch=Range(1, 3), error=0, role="client"),
            True,
        ),
    ],
)
def test_a_rule_hits_exactly_the_frames_that_it_names(match: Match, hit: bool) -> None:
    log = Log()
    seen = interceptor(log, rule("request_dropped", match=match)).before(NOW, request())
    assert (list(seen) == []) is hit
    assert (len(log.rows) == 1) is hit


@pytest.mark.parametrize(
    ("counting", "hits"),
    [
        ({}, "1"),
        ({"nth": 3}, "3"),
        ({"nth": 2, "every": 3, "times": 0}, "2 5 8"),
        ({"nth": 1, "every": 1, "times": 4}, "1 2 3 4"),
        ({"nth": 1, "every": 2, "times": 0, "total": 2}, "1 3"),
        ({"nth": 1, "every": 1, "times": 0, "after_us": 4, "until_us": 6}, "4 5"),
    ],
)
def test_counting_of_one_client(counting: dict[str, Any], hits: str) -> None:
    counter = Counter(rule("request_dropped", **counting), SharedClaims())
    assert " ".join(str(at) for at in range(1, 9) if counter.hit("one", at)) == hits


def test_each_client_is_counted_by_itself_and_total_over_all() -> None:
    counter = Counter(rule("request_dropped", nth=2, total=2), SharedClaims())
    order = ["a", "b", "a", "b", "c", "c"]
    assert [counter.hit(client, 0) for client in order] == [0, 0, 1, 2, 0, 0]


@pytest.mark.parametrize("between_processes", [False, True])
def test_total_counts_over_all_nodes_and_incarnations(between_processes: bool, tmp_path: Path) -> None:
    shared = SharedClaims()
    hits = []
    for node in (0, 1, 1, 2):
        claims: Claims = FileClaims(tmp_path / "claims") if between_processes else shared
        log = Log()
        interceptor(log, rule("node_paused", total=2), claims=claims, node=node).before(NOW, request())
        hits.append([row.hit for row in log.rows])
    assert hits == [[1], [2], [], []]


def test_a_range_is_drawn_from_the_seed() -> None:
    fault = Fault("f", "request_dropped", "request", nth=Range(1, 1000))
    scenario = replace(find("1"), faults=(fault,))
    draws = [rules_for(scenario, 0, Random(seed))[0].nth for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_evidence_names_the_frame_and_comes_before_the_kill() -> None:
    log = Log()
    subject = interceptor(log, rule("node_killed"))
    with pytest.raises(Ended):
        subject.before(NOW, request())
    assert [each[0] for each in log.asked] == ["report", "kill"]
    assert log.rows == [FaultRow("rule", "node_killed", 1_000_000, 1_000_000, "node-0", 1, "fetcher-1", FETCH, 9, 3)]


@pytest.mark.parametrize(
    ("more", "kind", "asked"),
    [
        ({"duration_us": 7}, "node_paused", ("pause", 7)),
        ({"step_ms": -3}, "clock_stepped", ("step_clock", -3)),
    ],
)
def test_a_strike_on_the_node_lets_the_frame_pass(more: dict[str, Any], kind: str, asked: tuple[object, ...]) -> None:
    log = Log()
    assert list(interceptor(log, rule(kind, **more)).before(NOW, request())) == [request()]
    assert log.asked[1] == asked


@pytest.mark.parametrize("kind", ["node_killed", "node_powered_off"])
def test_a_kill_on_a_reply_sends_nothing(kind: str) -> None:
    log = Log()
    with pytest.raises(Ended):
        interceptor(log, rule(kind, on="reply")).after(NOW, request(), [reply(request())])


def test_a_dropped_request_loses_its_connection() -> None:
    log = Log()
    assert list(interceptor(log, rule("request_dropped")).before(NOW, request(connection=8))) == []
    assert log.asked[1] == ("discard", 8)


def test_a_dropped_response_loses_its_connection_and_leaves_other_effects() -> None:
    log = Log()
    effects: Sequence[Effect] = [
        Note("a"),
        reply(request()),
        reply(request(connection=2, client="fetcher-2", session=0)),
    ]
    kept = interceptor(log, rule("response_dropped", on="reply", match=Match(session=True))).after(
        NOW, request(), effects
    )
    assert list(kept) == [effects[0], effects[2]]
    assert log.asked[1] == ("discard", 1)


def test_a_delayed_response_goes_out_later() -> None:
    log = Log()
    late = reply(request())
    subject = interceptor(log, rule("response_delayed", on="reply", delay_ms=Range(4, 4)))
    assert list(subject.after(NOW, request(), [late])) == []
    assert log.asked[1] == ("reply_later", late, 4000)


def test_a_doubled_request_comes_again_on_a_connection_of_its_own() -> None:
    log = Log()
    first, opened, again = interceptor(log, rule("request_duplicated")).before(NOW, request())
    assert first == request()
    assert isinstance(opened, Opened)
    assert isinstance(again, Request)
    assert again.connection == opened.connection < 0
    assert (again.body, again.tag, again.correlation_id) == (request().body, request().tag, request().correlation_id)


def test_the_answer_to_the_second_copy_is_evidence_and_goes_nowhere() -> None:
    log = Log()
    subject = interceptor(log, rule("request_duplicated"))
    _, opened, again = subject.before(NOW, request())
    assert isinstance(again, Request)
    assert list(subject.after(NOW, again, [reply(again, error=71)])) == []
    assert log.rows[-1].kind == "request_duplicated_answered"
    assert log.rows[-1].detail == "answered with error 71"
    assert isinstance(opened, Opened)
    assert log.asked[-1] == ("deliver_later", Closed(opened.connection), 0)


def test_a_close_of_the_second_copy_is_evidence_too() -> None:
    log = Log()
    subject = interceptor(log, rule("request_duplicated"))
    _, _, again = subject.before(NOW, request())
    assert isinstance(again, Request)
    assert list(subject.after(NOW, again, [Close(again.connection, "why")])) == []
    assert log.rows[-1].detail == "closed: why"


def test_a_late_copy_is_delivered_through_before() -> None:
    log = Log()
    subject = interceptor(log, rule("request_duplicated", delay_ms=Range(2, 2)))
    assert list(subject.before(NOW, request())) == [request()]
    _, again, delay_us = log.asked[1]
    assert isinstance(again, Request)
    assert delay_us == 2000
    assert list(subject.before(NOW, again)) == [Opened(again.connection, "phantom"), again]


def test_a_delayed_request_is_held_and_then_passes_without_being_hit_again() -> None:
    log = Log()
    subject = interceptor(log, rule("request_delayed", every=1, times=0, delay_ms=Range(3, 3)))
    held = request()
    assert list(subject.before(NOW, held)) == []
    assert log.asked[1] == ("deliver_later", held, 3000)
    assert list(subject.before(NOW, held)) == [held]
    assert len(log.rows) == 1


def test_a_delayed_request_arrives_even_if_its_client_left() -> None:
    log = Log()
    subject = interceptor(log, rule("request_delayed", delay_ms=Range(3, 3)))
    held = request()
    subject.before(NOW, held)
    assert list(subject.before(NOW, Closed(held.connection))) == [Closed(held.connection)]
    opened, late = subject.before(NOW, held)
    assert isinstance(opened, Opened)
    assert isinstance(late, Request)
    assert late.connection == opened.connection != held.connection
    assert late.tag == held.tag


def test_disarmed_it_hits_nothing() -> None:
    log = Log()
    subject = interceptor(log, rule("request_dropped"))
    subject.disarm()
    assert list(subject.before(NOW, request())) == [request()]
    assert log.asked == []


def test_a_disk_without_rules_is_not_wrapped() -> None:
    disk = MemoryDisk()
    assert interceptor(Log(), rule("request_dropped")).watch(disk) is disk


@pytest.mark.parametrize("kept", [0, 2, 6])
def test_a_kill_at_byte_k_of_a_write_leaves_k_bytes(kept: int) -> None:
    log, disk = Log(), MemoryDisk()
    disk.append("a.log", [b"old"])
    killed = rule("node_killed", on="disk_write", match=Match(path="*.log"), cut_bytes=Range(kept, kept))
    with pytest.raises(Ended):
        interceptor(log, killed).watch(disk).append("a.log", [b"abc", b"def"])
    assert disk.read("a.log", 0, 100) == b"old" + b"abcdef"[:kept]
    assert log.rows[0].detail == f"a.log at 3, {kept} of 6 bytes"


def test_a_failed_append_leaves_the_file_as_it_was() -> None:
    disk = MemoryDisk()
    disk.append("a.log", [b"old"])
    failing = rule("disk_write_failed", on="disk_write", cut_bytes=Range(2, 2))
    with pytest.raises(DiskError, match=r"a[.]log"):
        interceptor(Log(), failing).watch(disk).append("a.log", [b"abc"])
    assert disk.read("a.log", 0, 100) == b"old"


def test_a_bit_of_a_write_goes_bad_and_nobody_is_told() -> None:
    log, disk = Log(), MemoryDisk()
    disk.append("a.log", [b"old"])
    flipped = rule("disk_bit_flipped", on="disk_write", cut_bytes=Range(4, 4))
    assert interceptor(log, flipped).watch(disk).append("a.log", [b"abc", b"def"]) == 3
    assert disk.read("a.log", 0, 100) == b"oldabcddf"
    beyond = rule("disk_bit_flipped", on="disk_write", cut_bytes=Range(100, 100))
    interceptor(log, beyond).watch(disk).write("b", b"abc")
    assert disk.read("b", 0, 100) == b"abb", "a bit goes bad, however short the write is"
    assert [row.kind for row in log.rows] == ["disk_bit_flipped"] * 2


def test_a_failed_first_write_leaves_an_empty_file() -> None:
    disk = MemoryDisk()
    watched = interceptor(Log(), rule("disk_write_failed", on="disk_write", nth=1, every=1, times=0)).watch(disk)
    with pytest.raises(DiskError):
        watched.write("new", b"abc")
    with pytest.raises(DiskError):
        watched.append("newer", [b"abc"])
    assert disk.files == {"new": b"", "newer": b""}


def test_a_paused_disk_write_is_completed() -> None:
    log, disk = Log(), MemoryDisk()
    watched = interceptor(log, rule("node_paused", on="disk_write", duration_us=9, cut_bytes=Range(1, 1))).watch(disk)
    assert watched.append("a", [b"abc"]) == 0
    assert disk.read("a", 0, 9) == b"abc"
    assert log.asked[1] == ("pause", 9)


# Roles, answers of other nodes, and notes


@pytest.mark.parametrize(
    ("wanted", "role", "hits"),
    [
        ("leader", "leader", 1),
        ("leader", "follower", 0),
        ("observer", "observer", 1),
        ("any", "follower", 1),
        (3, "", 1),
        (2, "leader", 0),
    ],
)
def test_a_rule_for_a_role_strikes_only_while_the_node_is_that(wanted: int | str, role: str, hits: int) -> None:
    log = Log()
    interceptor(log, rule("node_paused", node=wanted), node=3, role=role).before(NOW, request())
    assert len(log.rows) == hits


def test_matches_are_counted_only_while_the_node_has_the_role() -> None:
    log, roles = Log(), ["follower", "follower", "leader", "leader"]
    subject = Interceptor(
        0, [rule("node_paused", node="leader", nth=2)], log, Random(1), 0, SharedClaims(), lambda: roles[0]
    )
    while roles:
        subject.before(NOW, request())
        roles.pop(0)
        assert len(log.rows) == (0 if roles else 1)


def test_a_role_is_watched_on_all_nodes_and_a_number_on_one() -> None:
    scenario = replace(
        find("1"),
        faults=(Fault("a", "node_killed", "note", node="leader"), Fault("b", "node_killed", "note", node=1)),
    )
    names = [[each.name for each in rules_for(scenario, node, Random(1))] for node in range(3)]
    assert names == [["a"], ["a", "b"], ["a"]]


COMMITTED = Note("metadata_committed", (("offset", 9), ("kind", "batch"), ("number", 3), ("of", 5)))


@pytest.mark.parametrize(
    ("match", "hit"),
    [
        (Match(note="metadata_committed"), True),
        (Match(note="metadata_appended"), False),
        (Match(note="metadata_committed", fields=(("kind", "[be]*"),)), True),
        (Match(note="metadata_committed", fields=(("kind", "end"),)), False),
        (Match(note="metadata_committed", fields=(("number", Range(3, 4)), ("remaining", Range(2, 2)))), True),
        (Match(note="metadata_committed", fields=(("remaining", Range(0, 0)),)), False),
        (Match(note="metadata_committed", fields=(("unknown", Range(0, 99)),)), False),
        (Match(note="metadata_committed", role="leader"), True),
        (Match(note="metadata_committed", role="observer"), False),
    ],
)
def test_a_note_is_matched_by_its_name_and_fields(match: Match, hit: bool) -> None:
    log = Log()
    effects: list[Effect] = [COMMITTED, reply(request())]
    subject = interceptor(log, rule("node_paused", on="note", match=match, duration_us=5), role="leader")
    assert list(subject.after(NOW, request(), effects)) == effects
    assert [each[0] for each in log.asked] == (["report", "pause"] if hit else [])
    if hit:
        assert log.rows[0].detail == "leader metadata_committed offset=9 kind=batch number=3 of=5"


def test_a_kill_at_a_note_lets_nothing_of_that_event_out() -> None:
    log = Log()
    killed = rule("node_killed", on="note", match=Match(note="metadata_committed"))
    with pytest.raises(Ended):
        interceptor(log, killed).after(NOW, request(), [reply(request()), COMMITTED])


SNAPSHOT = 59


def send(token: int, position: int = 0, api: int = SNAPSHOT, peer: int = 2) -> Send:
    tag = Tag(api, 1, "node-0", role="peer", position=position)
    return Send(peer, Channel.RAFT, token, api, 1, None, tag, 100, "node-0:here")


def answer(token: int, body: object = b"bytes") -> PeerReply:
    return PeerReply(2, Channel.RAFT, token, body)


def asked(subject: Interceptor, *sends: Send) -> None:
    assert list(subject.after(NOW, request(), sends)) == list(sends)


@pytest.mark.parametrize(
    ("match", "hit"),
    [
        (Match(), True),
        (Match(api=SNAPSHOT, position=Range(256, 300), role="follower", from_node=2), True),
        (Match(api=FETCH), False),
        (Match(position=Range(0, 255)), False),
        (Match(from_node=1), False),
        (Match(role="observer"), False),
    ],
)
def test_an_answer_of_another_node_is_matched_by_its_request(match: Match, hit: bool) -> None:
    log = Log()
    subject = interceptor(log, rule("node_paused", on="peer_reply", match=match), role="follower")
    asked(subject, send(7, position=256))
    assert list(subject.before(NOW, answer(7))) == [answer(7)]
    assert [row.detail for row in log.rows] == (["from node-2"] if hit else [])


def test_a_doubled_answer_comes_in_the_place_of_the_next_one_of_its_kind() -> None:
    log = Log()
    subject = interceptor(log, rule("response_duplicated", on="peer_reply", match=Match(api=SNAPSHOT), total=1))
    asked(subject, send(1))
    assert list(subject.before(NOW, answer(1))) == [answer(1)]
    asked(subject, send(2, api=FETCH))
    assert [each[0] for each in log.asked] == ["report"]
    asked(subject, send(3, position=5))
    assert log.asked[-1] == ("deliver_later", answer(3), 0)
    again = log.asked[-1][1]
    assert isinstance(again, PeerReply)
    assert list(subject.before(NOW, again)) == [again]
    assert list(subject.before(NOW, answer(3, b"true"))) == [answer(3, b"true")]


def test_a_delayed_answer_holds_back_what_follows_on_its_channel() -> None:
    log = Log()
    subject = interceptor(log, rule("response_delayed", on="peer_reply", delay_ms=Range(3, 3), total=1))
    asked(subject, send(1), send(2))
    late, following, down = answer(1), answer(2), PeerDown(2, Channel.RAFT)
    other = PeerDown(1, Channel.RAFT)
    assert list(subject.before(NOW, late)) == []
    assert log.asked[-1] == ("deliver_later", late, 3000)
    assert list(subject.before(NOW, following)) == []
    assert list(subject.before(NOW, down)) == []
    assert list(subject.before(NOW, other)) == [other]
    assert list(subject.before(NOW, late)) == [late, following, down]
    assert list(subject.before(NOW, down)) == [down]


@pytest.mark.parametrize(("role", "hit"), [("follower", True), ("leader", False)])
def test_a_write_is_struck_by_path_and_role(role: str, hit: bool) -> None:
    log, disk = Log(), MemoryDisk()
    failing = rule("disk_write_failed", on="disk_write", match=Match(path="*.part"), node="follower")
    watched = interceptor(log, failing, role=role).watch(disk)
    watched.append("log", [b"abc"])
    if hit:
        with pytest.raises(DiskError):
            watched.append("x.checkpoint.part", [b"abc"])
    else:
        watched.append("x.checkpoint.part", [b"abc"])
    assert (disk.read("x.checkpoint.part", 0, 9) == b"abc") is not hit
