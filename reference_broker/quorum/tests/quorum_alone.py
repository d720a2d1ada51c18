"""One quorum without a world: the test plays the disk, the clock and all other nodes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.records import TopicRecord, encode
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import NodeContext, Now
from reference_broker.quorum.messages import (
    RaftResponse,
    VoteRequest,
    build_begin_quorum_epoch_request,
    build_end_quorum_epoch_request,
    build_fetch_request,
    build_fetch_response,
    read_quorum_epoch_response,
    read_vote_response,
)
from reference_broker.quorum.messages import build_vote_request as vote_request
from reference_broker.quorum.messages import build_vote_response as vote_response
from reference_broker.quorum.metadata_log import Validity
from reference_broker.quorum.node_files import read_quorum_state
from reference_broker.quorum.raft_client import KafkaRaftClient
from reference_broker.quorum.raft_handlers import (
    handle_begin_quorum_epoch,
    handle_end_quorum_epoch,
    handle_fetch,
    handle_vote,
)
from reference_broker.quorum.tests.quorum_ports import QuorumPorts, SentRequest, opened
from reference_broker.quorum.tests.quorum_snapshots import NamedSnapshots
from reference_broker.quorum.values import DownloadOutcome, OffsetAndEpoch
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode, known_error
from reference_broker.wire.fetch import FetchRequest, FetchResponse, PartitionData

CLUSTER = "cluster"
WALL_MS = 1_700_000_000_000


@dataclass
class Sent:
    peer: int
    api_key: int
    body: Any
    timeout_ms: int
    replied: Callable[[object], None]
    failed: Callable[[], None]

    @property
    def partition(self) -> Any:
        return self.body.topics[0].partitions[0]


@dataclass
class Download:
    """The downloads that were started, with their callbacks."""

    started: list[tuple[int, int, OffsetAndEpoch]] = field(default_factory=list)
    cancels: int = 0
    waits_us: int = 0
    progress: Callable[[], None] = lambda: None
    outcome: Callable[[DownloadOutcome], None] = lambda _: None

    def begin(
        self,
        leader: int,
        leader_epoch: int,
        id: OffsetAndEpoch,  # noqa: A002
        progress: Callable[[], None],
        outcome: Callable[[DownloadOutcome], None],
    ) -> None:
        self.started.append((leader, leader_epoch, id))
        self.progress, self.outcome = progress, outcome

    def wait_us(self, leader: int, id: OffsetAndEpoch) -> int:  # noqa: A002, ARG002
        return self.waits_us

    def cancel(self) -> None:
        self.cancels += 1


NAMES = {
    "leader_changed": "leader",
    "leadership_won": "won",
    "leadership_lost": "lost",
    "high_watermark_advanced": "hw",
    "snapshot_installed": "snapshot",
}


class Alone(QuorumPorts):
    """Node 0 of voters 0, 1, 2 (or others). With ``auto_sync`` syncs end at once; otherwise they wait in ``syncs``."""

    def __init__(
        self,
        voters: int = 3,
        node_id: int = 0,
        disk: MemoryDisk | None = None,
        *,
        auto_sync: bool = True,
        **settings: str,
    ) -> None:
        super().__init__()
        self.node_id = node_id
        self.time_us = 1_000_000
        self.auto_sync = auto_sync
        self.disk = disk if disk is not None else MemoryDisk()
        self.sent: list[Sent] = []
        self.syncs: list[tuple[tuple[str, ...], Callable[[], None]]] = []
        self.timers: dict[int, tuple[int, Callable[[], None]]] = {}
        self.notifications: list[tuple[Any, ...]] = []
        self.download = Download()
        self._timer = 0
        dial = ",".join(f"{number}@host:{9000 + number}" for number in range(voters))
        given = {"controller.quorum.voters": dial, "crucible.cluster.id": CLUSTER}
        self.config = BrokerConfig.parse(given | {name.replace("_", "."): value for name, value in settings.items()})
        self.snapshots = NamedSnapshots(self.disk)
        self.log = opened(self.disk, self.config, self.now(), self.snapshots)
        self.quorum = KafkaRaftClient(
            NodeContext(node_id, self.disk, self, Random(5)), self.config, CLUSTER, self.log, self, self.download
        )

    # raft.ports.Ports

    def now(self) -> Now:
        return Now(self.time_us, WALL_MS + self.time_us // 1000)

    def at_end(self, step: Callable[[], None]) -> None:
        step()

    def set_timer(self, deadline_us: int, fire: Callable[[], None]) -> int:
        self._timer += 1
        self.timers[self._timer] = (deadline_us, fire)
        return self._timer

    def cancel_timer(self, timer: int) -> None:
        self.timers.pop(timer, None)

    def sync(self, paths: tuple[str, ...], done: Callable[[], None]) -> None:
        if self.auto_sync:
            done()
        else:
            self.syncs.append((paths, done))

    def send_request(self, peer: int, api_version: int, request: SentRequest, timeout_ms: int) -> None:
        assert api_version >= 1
        self.sent.append(Sent(peer, request.api_key, request.body, timeout_ms, request.replied, request.failed))

    def notify(self, what: str, *values: object) -> None:
        self.notifications.append((NAMES[what], *values))

    # Actions of the test

    def sync_one(self) -> None:
        self.syncs.pop(0)[1]()

    def sync_all(self) -> None:
        while self.syncs:
            self.sync_one()

    def pass_ms(self, duration_ms: int) -> None:
        """Fire timers in order."""
        end_us = self.time_us + duration_ms * 1000
        while True:
            due = [(deadline, number) for number, (deadline, _) in self.timers.items() if deadline <= end_us]
            if not due:
                break
            deadline, number = min(due)
            self.time_us = max(deadline, self.time_us)
            self.timers.pop(number)[1]()
        self.time_us = end_us

    def take_requests(self, api_key: int) -> list[Sent]:
        """Return the requests of an API since the last call. The others are dropped."""
        taken = [each for each in self.sent if each.api_key == api_key]
        self.sent.clear()
        return taken

    def started(self) -> "Alone":
        self.quorum.start()
        return self

    def elect(self, *voters: int) -> "Alone":
        """Make the node seek an election and get these voters' votes. The others cannot be reached."""
        while self.quorum.role.value in ("unattached", "resigned", "follower"):
            self.pass_ms(100)
        for _ in ("whether", "in earnest"):
            for request in self.take_requests(ApiKey.VOTE):
                if request.peer in voters:
                    request.replied(granted(request, True))
                else:
                    request.failed()
        assert self.quorum.is_leader, self.quorum.role
        return self

    def following(self, leader: int = 1, epoch: int = 5) -> "Alone":
        self.quorum.start()
        assert self.begin(leader, epoch).error is ErrorCode.none
        return self

    def request_vote(
        self,
        candidate: int,
        epoch: int,
        end: OffsetAndEpoch = OffsetAndEpoch(0, 0),  # noqa: B008 - immutable
        *,
        pre_vote: bool = False,
        cluster_id: str | None = CLUSTER,
        voter_id: int = -1,
    ) -> list[RaftResponse]:
        """Return the responses so far: none while a sync is pending. A request-level error has epoch -1."""
        responses: list[RaftResponse] = []
        request = VoteRequest(cluster_id, voter_id, candidate, epoch, end, pre_vote)
        body = vote_request(request)
        handle_vote(self.quorum, body, lambda body: responses.append(read_vote_response(body) or _whole(body)))
        return responses

    def begin(self, leader: int, epoch: int, voter_id: int = -1) -> RaftResponse:
        responses: list[RaftResponse] = []
        handle_begin_quorum_epoch(
            self.quorum,
            build_begin_quorum_epoch_request(CLUSTER, voter_id, leader, epoch),
            lambda body: responses.append(read_quorum_epoch_response(body) or _whole(body)),
        )
        return responses[0]

    def end(self, leader: int, epoch: int, *preferred_successors: int) -> RaftResponse:
        responses: list[RaftResponse] = []
        handle_end_quorum_epoch(
            self.quorum,
            build_end_quorum_epoch_request(CLUSTER, leader, epoch, preferred_successors),
            lambda body: responses.append(read_quorum_epoch_response(body) or _whole(body)),
        )
        return responses[0]

    def fetch(self, replica: int, offset: int, epoch: int, **changed: Any) -> list[PartitionData | FetchResponse]:
        """Return the responses so far: the partition's, or the whole response for an error of the request."""
        request = build_fetch_request(
            CLUSTER,
            replica,
            changed.pop("current", self.quorum.epoch),
            OffsetAndEpoch(offset, epoch),
            0,
            changed.pop("high_watermark", 2**63 - 1),
            changed.pop("wait_ms", 0),
        )
        for name, value in changed.items():
            setattr(request, name, value)
        return self.fetch_as(request)

    def fetch_as(self, request: FetchRequest) -> list[PartitionData | FetchResponse]:
        responses: list[PartitionData | FetchResponse] = []
        handle_fetch(
            self.quorum,
            request,
            lambda body: responses.append(body if body.error_code else body.responses[0].partitions[0]),
        )
        return responses

    def append(self, count: int = 1) -> None:
        for number in range(count):
            self.quorum.append([encode(TopicRecord(name=f"t{number}", topic_id=bytes(16)))])

    def respond_to_fetch(
        self,
        records: bytes = b"",
        high_watermark: int = -1,
        *,
        validity: Validity | None = None,
        error: Error = ErrorCode.none,
        leader: int = 1,
        epoch: int | None = None,
    ) -> None:
        """Respond to the only fetch in flight."""
        (request,) = self.take_requests(ApiKey.FETCH)
        epoch = self.quorum.epoch if epoch is None else epoch
        request.replied(build_fetch_response(error, leader, epoch, high_watermark, 0, validity, records))


def granted(request: Sent, is_granted: bool, leader: int = -1) -> object:
    return vote_response(RaftResponse(ErrorCode.none, leader, request.partition.replica_epoch, is_granted))


def durable_state(node: Alone) -> tuple[int, int, int]:
    """Return the epoch, the leader and the vote in the node's file."""
    state = read_quorum_state(node.disk)
    assert state is not None
    return state.leader_epoch, state.leader_id, state.voted_id


def batch(offset: int, epoch: int, count: int = 1) -> bytes:
    """Return the bytes of one batch as a leader sends it."""
    records = [Record(timestamp_ms=1, value=b"\x01\x14\x00\x00") for _ in range(count)]
    return build(records, base_offset=offset, leader_epoch=epoch)


def _whole(body: Any) -> RaftResponse:
    return RaftResponse(known_error(int(body.error_code)), -1, -1)
