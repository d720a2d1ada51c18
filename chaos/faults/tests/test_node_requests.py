"""Old requests between nodes once more, and forged ones: what is kept, what is sent, and what each lie is about."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnRequest
from kio.schema.broker_heartbeat.v2.request import BrokerHeartbeatRequest
from kio.schema.fetch_snapshot.v1.request import FetchSnapshotRequest
from kio.schema.types import BrokerId
from kio.static.primitive import i64

from chaos.faults.node_requests import FORGED, KEPT, NO_VOTER, Forger, NodeRequest, Recorded
from chaos.live.node_side.peer_requests import PeerRequestRecorder, recorded, recorded_at
from reference_broker.core.events import Request
from reference_broker.metadata.identifiers import client_id_of
from reference_broker.ports.node_ports import Now
from reference_broker.quorum import messages
from reference_broker.quorum.snapshots.messages import request_for
from reference_broker.quorum.values import MAX_EPOCH, OffsetAndEpoch
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.messages import encode_request
from reference_broker.wire.tags import Tag

CLUSTER = "the-cluster"
SNAPSHOT = OffsetAndEpoch(40, 2)
SENDER = client_id_of(1, UUID(int=7).bytes)


def beat(offset: int) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=BrokerId(1),
        broker_epoch=i64(5),
        current_metadata_offset=i64(offset),
        want_fence=False,
        want_shut_down=False,
    )


def record(seen: Recorded, api_key: int, body: object, at_us: int = 0, sender: str = SENDER) -> None:
    seen.add(at_us, 0, api_key, VERSIONS[api_key][1], sender, body)


def fetch(epoch: int) -> FetchRequest:
    return messages.build_fetch_request(CLUSTER, 1, epoch, OffsetAndEpoch(10, epoch), 0, 0, 0)


def test_kept_requests_are_few_and_spread_over_the_run() -> None:
    seen = Recorded()
    for number in range(1000):
        record(seen, ApiKey.BROKER_HEARTBEAT, beat(number), number * 1_000_000)
    labels = {request.label for seed in range(300) for request in seen.replays(0, Random(seed))}
    assert len(labels) <= KEPT
    seconds = sorted(float(label.split()[-2]) for label in labels)
    assert seconds[0] == 0
    assert seconds[-1] > 900


def test_only_requests_of_nodes_are_replayed_and_only_to_their_receivers() -> None:
    seen = Recorded()
    record(seen, ApiKey.BROKER_HEARTBEAT, beat(1))
    record(seen, ApiKey.VOTE, object(), sender="node-app")
    record(seen, ApiKey.METADATA, object())
    assert [replay.api_key for replay in seen.replays(0, Random(1))] == [ApiKey.BROKER_HEARTBEAT]
    assert seen.replays(1, Random(1)) == []


def forged(seed: int) -> list[NodeRequest]:
    seen = Recorded()
    record(seen, ApiKey.FETCH, fetch(4))
    record(seen, ApiKey.BROKER_HEARTBEAT, beat(1))
    record(seen, ApiKey.FETCH_SNAPSHOT, request_for(CLUSTER, 1, 3, SNAPSHOT, 256, 1024))
    return Forger(seen, CLUSTER, (0, 1, 2), 0, Random(seed)).requests()


@pytest.mark.parametrize("seed", range(40))
def test_each_forged_request_is_a_valid_frame_with_a_lie(seed: int) -> None:
    requests = forged(seed)
    assert {request.api_key for request in requests} <= FORGED
    assert len(requests) == 5 + 4 + 1
    for request in requests:
        assert encode_request(request.api_key, request.api_version, 1, request.client_id, request.body)
        if "false leader" in request.label:
            continue  # It is true at the leader, and only there.
        assert _LIES[request.api_key](request.body), request.label


def _lies_about_quorum(cluster_id: str | None, sender: int, epoch: int) -> bool:
    return cluster_id != CLUSTER or sender == NO_VOTER or epoch > MAX_EPOCH


def _vote_lies(body: object) -> bool:
    vote = messages.read_vote_request(body)
    assert vote is not None
    assert vote.voter_id == 0
    return _lies_about_quorum(vote.cluster_id, vote.candidate_id, vote.epoch)


def _news_lies(read: Callable[[object], messages.QuorumEpochRequest | None]) -> Callable[[object], bool]:
    def is_forged(body: object) -> bool:
        news = read(body)
        assert news is not None
        return _lies_about_quorum(news.cluster_id, news.leader_id, news.epoch)

    return is_forged


def _fetch_lies(body: object) -> bool:
    assert isinstance(body, FetchRequest)
    partition = messages.metadata_partition_of(body)
    assert partition is not None
    return body.cluster_id != CLUSTER or partition.current_leader_epoch > MAX_EPOCH


def _beat_lies(body: object) -> bool:
    assert isinstance(body, BrokerHeartbeatRequest)
    return body.broker_epoch != 5


def _snapshot_lies(body: object) -> bool:
    assert isinstance(body, FetchSnapshotRequest)
    (topic,) = body.topics
    (one,) = topic.partitions
    assert one.current_leader_epoch == 4, "the newest epoch, so that nothing but the lie speaks against it"
    return (topic.name, one.snapshot_id.end_offset, one.position) != ("__cluster_metadata", SNAPSHOT.offset, 256)


def _names_internal(body: object) -> bool:
    assert isinstance(body, AddPartitionsToTxnRequest)
    return [topic.name for transaction in body.transactions for topic in transaction.topics] == [
        "__consumer_offsets",
        "no-metadata",
    ]


_LIES: dict[int, Callable[[object], bool]] = {
    ApiKey.VOTE: _vote_lies,
    ApiKey.BEGIN_QUORUM_EPOCH: _news_lies(messages.read_begin_quorum_epoch_request),
    ApiKey.END_QUORUM_EPOCH: _news_lies(messages.read_end_quorum_epoch_request),
    ApiKey.FETCH: _fetch_lies,
    ApiKey.BROKER_HEARTBEAT: _beat_lies,
    ApiKey.FETCH_SNAPSHOT: _snapshot_lies,
    ApiKey.ADD_PARTITIONS_TO_TXN: _names_internal,
}


def test_forged_request_is_not_recorded_for_replay() -> None:
    seen = Recorded()
    for each in [request for seed in range(40) for request in forged(seed) if "false leader" not in request.label]:
        record(seen, each.api_key, each.body, sender=each.client_id)
    assert seen.replays(0, Random(1)) == []
    assert seen.epoch == 0


def test_nodes_file_round_trips(tmp_path: Path) -> None:
    keeping = PeerRequestRecorder(recorded_at(tmp_path, 0), origin_us=1_000_000)
    version = VERSIONS[ApiKey.FETCH][1]
    tag = Tag(ApiKey.FETCH, version, "node-1", role="peer")
    keeping.before(Now(3_000_000, 0), Request(1, 1, ApiKey.FETCH, version, SENDER, fetch(4), tag))
    keeping.before(Now(3_000_000, 0), Request(1, 1, ApiKey.FETCH, version, "c", FetchRequest(), tag._replace(role="")))
    (request,) = recorded(tmp_path, 0).replays(0, Random(1))
    assert (request.body, request.label) == (fetch(4), "Fetch of node-1 from 2.0 s")
