"""Requests between nodes that a fault sends: old ones of this run once more, and forged ones. Both worlds use this.

A *replayed* request was sent by a node of this run, to the node that gets it again now. In the meantime leaders may
have changed and nodes may have restarted. A *forged* request is a valid frame with one false field that
a node can check: the cluster's ID, a voter's ID, a broker's epoch, an epoch beyond the limit, or what is wanted of a
snapshot. A request for a snapshot that is correct at the leader is false at any other node. One forged request is that
of a client, which adds an internal topic to its transaction. With the cluster's ID, a voter's ID and access to the
listener, a forger can do more (``reference_broker/quorum/README.md``).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.fetch_snapshot.v1.request import FetchSnapshotRequest
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32, i64

from reference_broker.metadata.identifiers import OFFSETS_TOPIC, claimed_node, client_id_of, is_internal
from reference_broker.quorum import messages
from reference_broker.quorum.values import MAX_EPOCH, OffsetAndEpoch
from reference_broker.wire.apis import VERSIONS, ApiKey, api_name
from reference_broker.wire.fetch import FetchRequest

KEPT = 32
"""Number of requests of one API and one receiver that are stored. They are spread over the whole run."""
WRONG_CLUSTER = "another-cluster-entirely"
NO_VOTER = 77
OFFSETS_AHEAD = 1_000_000
"""Distance of a forged fetch offset beyond the end of the log. If it were believed, records would be committed that no
replica has."""
EPOCHS_AHEAD = (1, 5, 1_000)
TOO_HIGH_EPOCHS = (MAX_EPOCH + 1, (1 << 31) - 1)
WRONG_BROKER_EPOCHS = (-1, 0, 1 << 40, (1 << 63) - 1)
_QUORUM = (ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH)
_BROKERS = (ApiKey.ALTER_PARTITION, ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT)
OF_NODES = frozenset((*_QUORUM, *_BROKERS, ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT))
FORGED = OF_NODES | {ApiKey.ADD_PARTITIONS_TO_TXN}
"""APIs of forged requests: requests between nodes, which no client may send."""
BY_CLIENTS = 3
"""The newest version of AddPartitionsToTxn that is for clients. Brokers may add any partition."""
FAR_POSITIONS = (-1, 1 << 40)
"""Positions that lie outside any snapshot."""
FAR_OFFSET = 1 << 40
"""The end of a snapshot that no node has."""
NO_METADATA = "no-metadata"
"""The name of a topic that has no snapshots."""


class NodeRequest(NamedTuple):
    """A request from one node to another."""

    api_key: int
    api_version: int
    client_id: str
    body: Any
    label: str
    """Name of the request in the evidence."""


@dataclass(slots=True)
class _Series:
    """The requests of one API to one node: at most KEPT of them, evenly spread."""

    kept: list[tuple[int, int, str, Any]] = field(default_factory=list)
    seen: int = 0
    step: int = 1

    def add(self, one: tuple[int, int, str, Any]) -> None:
        if self.seen % self.step == 0:
            self.kept.append(one)
            if len(self.kept) > KEPT:
                self.kept, self.step = self.kept[::2], self.step * 2
        self.seen += 1


class Recorded:
    """The requests between nodes that were seen so far, and the newest epoch of the quorum among them."""

    def __init__(self) -> None:
        self.epoch = 0
        self._series: dict[int, dict[int, _Series]] = {}
        self.for_snapshot: tuple[str, Any] | None = None
        """The sender and the body of the newest request for a snapshot, to whichever node."""

    def add(self, at_us: int, target: int, api_key: int, api_version: int, client_id: str, body: object) -> None:
        """Take a request that a node sent to the node ``target``. Forged ones and other kinds are ignored."""
        if api_key not in OF_NODES or claimed_node(client_id) is None or _is_forged(body):
            return
        if isinstance(body, FetchRequest):
            partition = messages.metadata_partition_of(body)
            if partition is None:
                return
            self.epoch = max(self.epoch, partition.current_leader_epoch)
        if api_key == ApiKey.FETCH_SNAPSHOT:
            self.for_snapshot = client_id, body
        series = self._series.setdefault(target, {}).setdefault(api_key, _Series())
        series.add((at_us, api_version, client_id, body))

    def replays(self, target: int, random: Random) -> list[NodeRequest]:
        """Return one old request of each API that the node has got, in a drawn order."""
        replayed = []
        for api_key, series in sorted(self._series.get(target, {}).items()):
            at_us, version, client_id, body = random.choice(series.kept)
            label = f"{api_name(api_key)} of {client_id.partition(':')[0]} from {at_us / 1e6:.1f} s"
            replayed.append(NodeRequest(api_key, version, client_id, body, label))
        random.shuffle(replayed)
        return replayed

    def newest(self, target: int, api_key: int) -> tuple[str, Any] | None:
        """Return the sender and the body of the newest request of the API that was kept, or None."""
        series = self._series.get(target, {}).get(api_key)
        return None if series is None else series.kept[-1][2:]


def _is_forged(body: Any) -> bool:
    """Return whether a request is recognisably forged. Nodes of a live run record those, too."""
    if isinstance(body, FetchRequest) and messages.metadata_partition_of(body) is None:
        return True
    if isinstance(body, FetchSnapshotRequest):
        one = body.topics[0].partitions[0]
        is_far = one.position in FAR_POSITIONS or one.snapshot_id.end_offset == FAR_OFFSET
        return is_far or body.topics[0].name == NO_METADATA
    return is_forged(body)


def is_forged(body: Any) -> bool:
    """Return whether a request has a false sender, which the node that gets it can see."""
    if isinstance(body, FetchRequest):
        partition = messages.metadata_partition_of(body)
        return partition is not None and partition.fetch_offset == OFFSETS_AHEAD
    if isinstance(body, AddPartitionsToTxnRequest):
        return any(is_internal(topic.name) for transaction in body.transactions for topic in transaction.topics)
    read = _READERS.get(type(body).__name__)
    message = read(body) if read is not None else None
    if message is not None:
        is_known = message.cluster_id not in (None, WRONG_CLUSTER)
        return not is_known or message.epoch > MAX_EPOCH or _sender(message) == NO_VOTER
    cluster_id, epoch = getattr(body, "cluster_id", ""), getattr(body, "broker_epoch", None)
    return cluster_id == WRONG_CLUSTER or epoch in WRONG_BROKER_EPOCHS


def _sender(message: messages.VoteRequest | messages.QuorumEpochRequest) -> int:
    return message.candidate_id if isinstance(message, messages.VoteRequest) else message.leader_id


_READERS: dict[str, Callable[[object], messages.VoteRequest | messages.QuorumEpochRequest | None]] = {
    "VoteRequest": messages.read_vote_request,
    "BeginQuorumEpochRequest": messages.read_begin_quorum_epoch_request,
    "EndQuorumEpochRequest": messages.read_end_quorum_epoch_request,
}


@dataclass(slots=True)
class Forger:
    """Forges requests to a node in the name of another voter."""

    recorded: Recorded
    cluster_id: str
    voters: tuple[int, ...]
    """IDs of all voters."""
    target: int
    """ID of the node that receives the requests."""
    random: Random

    def requests(self) -> list[NodeRequest]:
        """Return one forged request of each API. Some APIs are missing if no such request was recorded."""
        requests = [*self._of_quorum(), *self._of_brokers(), *self._for_snapshots(), self._of_a_client()]
        self.random.shuffle(requests)
        return requests

    def _of_quorum(self) -> Iterator[NodeRequest]:
        for api_key, forge in _FORGED.items():
            cluster_id, sender = self.cluster_id, self._someone()
            voter_id, lie = self.target, self.random.choice(("cluster ID", "no cluster ID", "voter ID", "epoch"))
            epoch = min(self.recorded.epoch + self.random.choice(EPOCHS_AHEAD), TOO_HIGH_EPOCHS[-1])
            named: str | None = cluster_id
            if lie == "epoch":
                epoch = self.random.choice(TOO_HIGH_EPOCHS)
            elif lie == "voter ID":
                sender = NO_VOTER
            else:
                named = None if lie == "no cluster ID" else WRONG_CLUSTER
            if api_key == ApiKey.FETCH and lie == "voter ID":
                named, lie = WRONG_CLUSTER, "cluster ID"  # Any sender with the cluster ID may fetch, as an observer.
            body = forge(self, named, voter_id, sender, epoch)
            client_id = client_id_of(sender, self.random.getrandbits(128).to_bytes(16, "big"))
            yield self._forged_request(api_key, client_id, body, f"{lie}, epoch {epoch}")

    def _of_brokers(self) -> Iterator[NodeRequest]:
        for api_key in _BROKERS:
            newest = self.recorded.newest(self.target, api_key)
            if newest is None:
                continue
            client_id, body = newest
            if api_key == ApiKey.BROKER_REGISTRATION:
                body = replace(body, cluster_id=WRONG_CLUSTER, incarnation_id=UUID(int=self.random.getrandbits(128)))
                lie = "cluster ID"
            else:
                epoch = self.random.choice(WRONG_BROKER_EPOCHS)
                lie = f"broker epoch {epoch}"
                body = replace(body, broker_epoch=epoch)
                if api_key == ApiKey.BROKER_HEARTBEAT:
                    body = replace(body, want_shut_down=True, want_fence=True)
            yield self._forged_request(api_key, client_id, body, lie)

    def _for_snapshots(self) -> Iterator[NodeRequest]:
        """The newest request for a snapshot, once with each false field."""
        if self.recorded.for_snapshot is None:
            return
        client_id, body = self.recorded.for_snapshot
        (topic,) = body.topics
        one = replace(topic.partitions[0], current_leader_epoch=i32(self.recorded.epoch))
        far = replace(one, position=i64(self.random.choice(FAR_POSITIONS)))
        unknown = replace(one, snapshot_id=replace(one.snapshot_id, end_offset=i64(FAR_OFFSET)))
        for lie, name, partition in (
            ("leader", topic.name, one),
            ("position", topic.name, far),
            ("snapshot ID", topic.name, unknown),
            ("topic", TopicName(NO_METADATA), one),
        ):
            forged = replace(body, topics=(replace(topic, name=name, partitions=(partition,)),))
            yield self._forged_request(ApiKey.FETCH_SNAPSHOT, client_id, forged, lie)

    def _of_a_client(self) -> NodeRequest:
        topics = tuple(
            AddPartitionsToTxnTopic(name=TopicName(name), partitions=(i32(0),)) for name in (OFFSETS_TOPIC, NO_METADATA)
        )
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=TransactionalId("forged"), producer_id=ProducerId(0), producer_epoch=i16(0), topics=topics
        )
        return NodeRequest(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            BY_CLIENTS,
            client_id_of(self._someone(), bytes(16)),
            AddPartitionsToTxnRequest(transactions=(transaction,)),
            f"AddPartitionsToTxn with {OFFSETS_TOPIC}",
        )

    def _forged_request(self, api_key: int, client_id: str, body: Any, lie: str) -> NodeRequest:
        label = f"{api_name(api_key)} of {client_id.partition(':')[0]} with a false {lie}"
        return NodeRequest(api_key, VERSIONS[api_key][1], client_id, body, label)

    def _someone(self) -> int:
        return self.random.choice([voter for voter in self.voters if voter != self.target])

    def _vote(self, cluster_id: str | None, voter_id: int, sender: int, epoch: int) -> object:
        end = OffsetAndEpoch(OFFSETS_AHEAD, max(0, min(epoch, MAX_EPOCH) - 1))
        return messages.build_vote_request(
            messages.VoteRequest(cluster_id, voter_id, sender, epoch, end, self.random.random() < 0.3)
        )

    def _begin(self, cluster_id: str | None, voter_id: int, sender: int, epoch: int) -> object:
        return replace(messages.build_begin_quorum_epoch_request("", voter_id, sender, epoch), cluster_id=cluster_id)

    def _end(self, cluster_id: str | None, voter_id: int, sender: int, epoch: int) -> object:
        return replace(messages.build_end_quorum_epoch_request("", sender, epoch, (voter_id,)), cluster_id=cluster_id)

    def _fetch(self, cluster_id: str | None, voter_id: int, sender: int, epoch: int) -> object:  # noqa: ARG002
        """A fetch in the leader's own epoch, so that only the false field is a reason to reject it."""
        true_epoch = self.recorded.epoch if epoch <= MAX_EPOCH else epoch
        end = OffsetAndEpoch(OFFSETS_AHEAD, true_epoch)
        return replace(messages.build_fetch_request("", sender, true_epoch, end, 0, 0, 0), cluster_id=cluster_id)


_FORGED: dict[int, Callable[[Forger, str | None, int, int, int], object]] = {
    ApiKey.VOTE: Forger._vote,
    ApiKey.BEGIN_QUORUM_EPOCH: Forger._begin,
    ApiKey.END_QUORUM_EPOCH: Forger._end,
    ApiKey.FETCH: Forger._fetch,
}
