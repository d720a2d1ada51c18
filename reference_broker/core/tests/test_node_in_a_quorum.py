"""One node of several: the test sends the responses of the others and checks its reactions."""

from typing import Any

from reference_broker.core.events import Effect, PeerReply, Send, Sync
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.quorum.messages import build_fetch_response
from reference_broker.quorum.metadata_log import VALID
from reference_broker.quorum.node_files import META_PROPERTIES, TEMPORARY_SUFFIX
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

VOTERS = "1@one:9092,2@two:9092,3@three:9092"
LEADER, EPOCH = 1, 5


class Member(NodeWorld):
    """Node ``node_id`` of a quorum whose leader is node 1. Its requests to other nodes wait in ``requests``."""

    def __init__(self, node_id: int) -> None:
        super().__init__(node_id=node_id, start=False, controller_quorum_voters=VOTERS, crucible_cluster_id="cluster")
        self.requests: list[Send] = []
        self.start()

    def _take(self, effects: Any) -> None:
        effects = list(effects)
        self.requests.extend(effect for effect in effects if isinstance(effect, Send))
        super()._take(effects)

    def next_request(self, api_key: int) -> Send:
        """Return the next request of this API, after the time that it takes. Others are dropped."""
        self.settle_until(lambda: any(request.api_key == api_key for request in self.requests))
        found = next(request for request in self.requests if request.api_key == api_key)
        self.requests.clear()
        return found

    def reply(self, request: Send, body: object) -> None:
        self.give(PeerReply(request.peer, request.channel, request.token, body))

    def follow(self) -> Send:
        """Find the leader. Return the first fetch as a follower."""
        unknown = self.next_request(ApiKey.FETCH)
        self.reply(unknown, build_fetch_response(ErrorCode.not_leader_or_follower, LEADER, EPOCH, -1, 0))
        return self.next_request(ApiKey.FETCH)

    def first_records(self, request: Send) -> None:
        """Reply with one committed batch."""
        batch = build([Record(timestamp_ms=0, value=b"")], leader_epoch=EPOCH, is_control=True)
        self.reply(request, build_fetch_response(ErrorCode.none, LEADER, EPOCH, 1, 0, VALID, bytes(batch)))


def synced_paths(effects: list[Effect]) -> list[str]:
    return [path for effect in effects if isinstance(effect, Sync) for path in effect.paths]


def test_directory_identity_is_written_after_durable_log() -> None:
    """Otherwise a power loss leaves the identity without the log, and the node can never start again."""
    for node_id in (2, 9):
        member = Member(node_id)
        request = member.follow()
        member.hold_syncs = True
        member.first_records(request)
        log = member.node.broker.quorum_node.log
        assert member.node.broker.quorum.high_watermark == 1
        while META_PROPERTIES + TEMPORARY_SUFFIX not in synced_paths(member.effects):
            assert log.synced_offset == 0 or not member.syncs
            member.complete_sync()
        assert log.synced_offset == 1


def test_broker_registers_after_directory_identity_is_durable() -> None:
    """The registration has the directory's ID, which must not change after a power loss."""
    member = Member(9)
    request = member.follow()
    member.hold_syncs = True
    member.first_records(request)
    while not member.disk.exists(META_PROPERTIES):
        assert not [each for each in member.requests if each.api_key == ApiKey.BROKER_REGISTRATION]
        member.complete_sync()
    assert not [each for each in member.requests if each.api_key == ApiKey.BROKER_REGISTRATION], (
        "its name is not durable"
    )
    member.complete_sync()
    assert member.next_request(ApiKey.BROKER_REGISTRATION).peer == LEADER


def test_forced_stop_leaves_quorum_before_clean_shutdown_file() -> None:
    """The others do not respond, perhaps for longer than the node may wait."""
    world = NodeWorld(controller_quorum_request_timeout_ms="60000")
    world.create("t")
    log = world.node.broker.quorum_node.log
    world.hold_syncs = True
    world.shut_down()
    world.advance(5_000)
    quorum = world.node.broker.quorum
    assert quorum.stopped
    assert not quorum.is_leader or not quorum.state.live
    end = log.end
    world.complete_syncs()
    assert world.node.stopped
    assert log.end == end
