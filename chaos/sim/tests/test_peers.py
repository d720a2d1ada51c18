"""Requests between simulated nodes: dialled on demand, in order, ended by whatever breaks the connection."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from chaos.sim import codec_check, network
from chaos.sim.agenda import Agenda
from chaos.sim.links import LATENCY_US, Links
from chaos.sim.machine import Machine, nothing
from chaos.sim.network import Network
from reference_broker.core.events import (
    Closed,
    Effect,
    Event,
    Opened,
    PeerDown,
    PeerReply,
    PeerUp,
    Reply,
    Request,
    Send,
    SetTimer,
    TimerFired,
)
from reference_broker.ports.node_ports import Channel, Now
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest, FetchResponse
from reference_broker.wire.tags import Tag

TIMEOUT_MS = 2000
PATIENCE_US = 10_000


class FakeNode:
    """A fake core.node.Node. It responds to each request while ``responds`` is set."""

    listening = True
    ready = True
    stopped = False

    def __init__(self, node_id: int, agenda: Agenda) -> None:
        self.node_id = node_id
        self.agenda = agenda
        self.responds = True
        self.cancelled: list[int] = []
        self.seen: list[tuple[int, Event]] = []
        self.wanted: list[Effect] = []

    def awaits(self, timer: int) -> bool:
        return timer not in self.cancelled

    def start(self, now: Now) -> Sequence[Effect]:  # noqa: ARG002
        return ()

    def shutdown(self, now: Now) -> Sequence[Effect]:  # noqa: ARG002
        self.stopped = True
        return ()

    def handle(self, now: Now, event: Event) -> Sequence[Effect]:
        self.seen.append((now.mono_us, event))
        wanted, self.wanted = self.wanted, []
        if isinstance(event, Request) and self.responds:
            wanted.append(reply_to(event))
        return wanted

    def of(self, kind: type) -> list[Any]:
        return [event for _, event in self.seen if type(event) is kind]


def reply_to(event: Request) -> Reply:
    return Reply(event.connection, event.correlation_id, event.api_key, event.api_version, FetchResponse(), event.tag)


class Pair:
    """Two machines; node 0 sends requests to node 1."""

    def __init__(self, seed: int = 0) -> None:
        self.agenda = Agenda()
        self.links = Links(self.agenda, seed)
        self.nodes: list[FakeNode] = [FakeNode(number, self.agenda) for number in range(2)]
        self.machines = [Machine(number, self.agenda, seed, self.boot) for number in range(2)]
        self.network = Network(self.machines, self.links, Random(seed))
        self.token = 0
        for machine in self.machines:
            machine.start()

    def boot(self, machine: Machine) -> Any:
        node = self.nodes[machine.node_id] = FakeNode(machine.node_id, self.agenda)
        return node, (), nothing

    @property
    def sender(self) -> FakeNode:
        return self.nodes[0]

    @property
    def receiver(self) -> FakeNode:
        return self.nodes[1]

    def request(self, channel: Channel = Channel.RAFT, timeout_ms: int = TIMEOUT_MS) -> int:
        self.token += 1
        tag = Tag(ApiKey.FETCH, 17, "node-0", role="peer")
        body = FetchRequest(session_id=0, session_epoch=-1, replica_id=0)
        send = Send(1, channel, self.token, ApiKey.FETCH, 17, body, tag, timeout_ms, "node-0:here")
        self.network.send(self.machines[0], send)
        return self.token

    def run(self, for_us: int = PATIENCE_US) -> None:
        self.agenda.run_until(self.agenda.now_us + for_us)

    def replies(self) -> list[int]:
        return [event.token for event in self.sender.of(PeerReply)]


@pytest.mark.parametrize("seed", range(5))
def test_requests_of_channel_dial_once_and_get_responses_in_order(seed: int) -> None:
    pair = Pair(seed)
    tokens = [pair.request() for _ in range(10)]
    pair.run(50_000)
    assert pair.replies() == tokens
    assert [type(event) for _, event in pair.sender.seen] == [PeerUp] + [PeerReply] * 10
    requests = pair.receiver.of(Request)
    assert [request.correlation_id for request in requests] == tokens
    assert {(request.client_id, request.tag.client_id, request.tag.role) for request in requests} == {
        ("node-0:here", "node-0", "peer")
    }
    assert len(pair.receiver.of(Opened)) == 1


def test_next_request_of_a_connection_comes_only_after_the_reply() -> None:
    pair = Pair()
    pair.receiver.responds = False
    pair.request(), pair.request()
    pair.run()
    (first,) = pair.receiver.of(Request)
    pair.network.reply(reply_to(first))
    pair.run()
    assert [each.correlation_id for each in pair.receiver.of(Request)] == [1, 2]
    assert pair.replies() == [1]


def test_channels_do_not_wait_for_each_other() -> None:
    pair = Pair()
    pair.receiver.responds = False
    pair.request(Channel.RAFT)
    pair.run()
    pair.receiver.responds = True
    pair.request(Channel.CONTROLLER)
    pair.run()
    assert [(event.channel, event.token) for event in pair.sender.of(PeerReply)] == [(Channel.CONTROLLER, 2)]


def test_timeout_ends_all_that_waits_on_the_channel_and_the_next_send_reconnects() -> None:
    pair = Pair()
    pair.receiver.responds = False
    pair.request(timeout_ms=500)
    pair.request(timeout_ms=100)
    pair.run(90_000)
    assert pair.sender.of(PeerDown) == []
    pair.run(20_000)
    assert pair.sender.of(PeerDown) == [PeerDown(1, Channel.RAFT)]
    assert len(pair.receiver.of(Closed)) == 1
    pair.receiver.responds = True
    pair.request()
    pair.run(1_000_000)
    assert pair.replies() == [3]
    assert len(pair.sender.of(PeerDown)) == 1


def test_dead_peer_refuses_and_a_killed_one_is_noticed_at_once() -> None:
    pair = Pair()
    pair.receiver.responds = False
    pair.request()
    pair.run()
    pair.machines[1].kill_now(power_loss=False)
    killed_us = pair.agenda.now_us
    pair.run()
    pair.request()
    pair.run()
    downs = [at_us for at_us, event in pair.sender.seen if isinstance(event, PeerDown)]
    assert len(downs) == 2
    assert downs[0] - killed_us <= LATENCY_US[1]
    assert downs[1] - killed_us <= PATIENCE_US + 2 * LATENCY_US[1]


def test_node_that_does_not_listen_yet_refuses() -> None:
    pair = Pair()
    pair.receiver.listening = False
    pair.request()
    pair.run()
    assert pair.sender.of(PeerDown) == [PeerDown(1, Channel.RAFT)]


SILENT = pytest.mark.parametrize(
    "how", [{"power_loss": True}, {"power_loss": False, "silent": True}], ids=["off", "lost"]
)


@SILENT
def test_machine_out_of_reach_is_silent_until_the_timeout_or_until_it_is_back(how: dict[str, bool]) -> None:
    pair = Pair()
    pair.receiver.responds = False
    pair.request()
    pair.run()
    pair.machines[1].kill_now(**how)
    pair.run(1_900_000)
    assert pair.sender.of(PeerDown) == []
    pair.run(200_000)
    assert len(pair.sender.of(PeerDown)) == 1
    pair.request()
    pair.run(1_000_000)
    assert len(pair.sender.of(PeerDown)) == 1, "nobody refuses"
    pair.run(1_100_000)
    assert len(pair.sender.of(PeerDown)) == 2
    pair.machines[1].start()
    pair.request()
    pair.run()
    assert pair.replies() == [3]


@SILENT
def test_machine_out_of_reach_is_dialled_again_and_responds_when_it_is_back(how: dict[str, bool]) -> None:
    pair = Pair()
    pair.machines[1].kill_now(**how)
    pair.request()
    pair.run(200_000)
    pair.machines[1].start()
    pair.run(600_000)
    assert pair.replies() == [], "the first dial was lost"
    pair.run(400_000)
    assert pair.replies() == [1]
    assert pair.sender.of(PeerDown) == []


@SILENT
def test_connection_that_outlived_its_machine_is_reset_when_that_is_back(how: dict[str, bool]) -> None:
    pair = Pair()
    pair.receiver.responds = False
    pair.request()
    pair.run()
    pair.machines[1].kill_now(**how)
    pair.run()
    pair.machines[1].start()
    pair.run()
    assert pair.sender.of(PeerDown) == [PeerDown(1, Channel.RAFT)]


def test_stopped_process_is_still_accepted_and_responds_when_it_goes_on() -> None:
    pair = Pair()
    pair.machines[1].pause(300_000)
    pair.request()
    pair.run(200_000)
    assert pair.sender.of(PeerUp) == [PeerUp(1, Channel.RAFT)]
    assert pair.replies() == []
    pair.run(200_000)
    assert pair.replies() == [1]


def test_continued_process_handles_received_requests_before_timeouts() -> None:
    pair = Pair()
    pair.request(timeout_ms=100)
    pair.run(700)
    pair.machines[0].pause(500_000)
    pair.run(1_000_000)
    assert pair.replies() == [1]
    assert pair.sender.of(PeerDown) == []


def test_end_of_the_requesting_node_closes_its_connections() -> None:
    pair = Pair()
    pair.receiver.responds = False
    pair.request()
    pair.run()
    pair.machines[0].kill_now(power_loss=False)
    pair.run()
    assert len(pair.receiver.of(Closed)) == 1
    pair.machines[0].start()
    pair.run(3_000_000)
    assert pair.sender.seen == [], "a new process gets nothing of the old one's requests"


@pytest.mark.parametrize("cut", ["up", "down"])
def test_each_link_and_each_direction_is_its_own(cut: str) -> None:
    pair = Pair()
    getattr(pair.links.between(0, 1), cut).cuts = 1
    pair.request()
    pair.run()
    assert len(pair.receiver.of(Opened)) == (0 if cut == "up" else 1)
    assert pair.replies() == []
    pair.run(2_000_000)
    assert len(pair.sender.of(PeerDown)) == 1
    other = PeerDown(0, Channel.RAFT)
    tag = Tag(ApiKey.FETCH, 17, "node-1", role="peer")
    send = Send(0, Channel.RAFT, 1, ApiKey.FETCH, 17, FetchRequest(), tag, TIMEOUT_MS, "node-1:there")
    pair.network.send(pair.machines[1], send)
    pair.run()
    assert [event.token for event in pair.receiver.of(PeerReply)] == [1]
    assert other not in pair.receiver.of(PeerDown)


def test_sigterm_ends_simulated_node_cleanly() -> None:
    pair = Pair()
    pair.machines[1].terminate()
    assert not pair.machines[1].alive


def test_peers_messages_go_through_the_codec_too(monkeypatch: pytest.MonkeyPatch) -> None:
    coded = [0, 0]

    def counted(place: int, inner: Callable[..., object]) -> Callable[..., object]:
        def count(*args: Any) -> object:
            coded[place] += 1
            return inner(*args)

        return count

    monkeypatch.setattr(network, "same_after_codec_request", counted(0, codec_check.same_after_codec_request))
    monkeypatch.setattr(network, "same_after_codec_reply", counted(1, codec_check.same_after_codec_reply))
    pair = Pair()
    for _ in range(1000):
        pair.request()
        pair.run()
    assert all(8 <= each <= 40 for each in coded), coded


def test_timer_that_the_node_has_cancelled_is_no_event() -> None:
    pair = Pair()
    pair.sender.wanted = [SetTimer(1, 3_000), SetTimer(2, 4_000)]
    pair.sender.cancelled = [1]
    pair.machines[0].deliver(0, Closed(1))
    pair.run()
    assert [(at_us, event) for at_us, event in pair.sender.seen if type(event) is TimerFired] == [
        (4_000, TimerFired(2))
    ]
