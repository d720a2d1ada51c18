"""FetchSnapshot: returns bytes of a snapshot of the metadata log, from its leader.

* Errors come in Kafka's order: cluster ID, number of partitions, partition, epoch, leader, leaving, snapshot, position.
* Each partition is served or refused by itself. Only the metadata partition has snapshots, and a request that names it
  again gets INVALID_REQUEST for that entry.
* One response has at most 8 MiB.
* The whole snapshot is checked when a download begins. A damaged one is KAFKA_STORAGE_ERROR, and a new one is made.
* Unlike Kafka: there are no directory IDs. A request for no topic is INVALID_REQUEST, where Kafka fails. Kafka
  returns one partition of a request, whatever else it names.

Version notes:
* v1000: an earlier layout of KIP-630. It says whether more remains instead of the size, and of what kind the bytes are.

KIPs: 595, 630, 853.
"""

from collections.abc import Sequence

from kio.schema.fetch_snapshot.v1.request import FetchSnapshotRequest

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback
from reference_broker.apis.registry import Api
from reference_broker.quorum.snapshots.messages import (
    DRAFT_VERSION,
    Piece,
    SnapshotRequest,
    draft_refused,
    draft_response_of,
    read_requests,
    refused,
    response_of,
)
from reference_broker.quorum.snapshots.serving import refusal, serve
from reference_broker.wire.errors import ErrorCode

MAX_PARTITIONS = 1000
"""A request for more partitions is INVALID_REQUEST. This bounds the work of one event; a follower names one."""


def handle(broker: Broker, call: Call, body: FetchSnapshotRequest) -> object | None:
    """Respond with a FetchSnapshotResponse, or a FetchSnapshotResponse1000 for the draft. Bytes are sent once the
    snapshot is checked."""
    is_draft = call.api_version == DRAFT_VERSION
    requests = read_requests(body)
    whole = broker.quorum.validate_leader_only_request(body.cluster_id, broker.quorum.epoch)
    if whole is not ErrorCode.inconsistent_cluster_id and not 0 < len(requests) <= MAX_PARTITIONS:
        whole = ErrorCode.invalid_request
    if whole in (ErrorCode.inconsistent_cluster_id, ErrorCode.invalid_request):
        return draft_refused(whole) if is_draft else refused(whole)
    pieces = [refusal(request, broker.snapshots, broker.quorum, is_draft) for request in requests]
    if None not in pieces:
        return _build_response(broker, requests, pieces, is_draft)
    served = pieces.index(None)
    pieces = [piece or Piece(ErrorCode.invalid_request) for piece in pieces]

    def respond() -> None:
        pieces[served] = serve(requests[served], broker.snapshots, broker.quorum, broker.now.mono_us, is_draft)
        call.respond(_build_response(broker, requests, pieces, is_draft))

    request = requests[served]
    broker.snapshot_checks.before_serving(request.id, request.position, callback(call, respond))
    return None


API = Api.of(FetchSnapshotRequest, handle)


def _build_response(
    broker: Broker, requests: Sequence[SnapshotRequest], pieces: Sequence[Piece | None], is_draft: bool
) -> object:
    results = [(request, piece) for request, piece in zip(requests, pieces, strict=True) if piece is not None]
    if any(piece.error is ErrorCode.inconsistent_cluster_id for _, piece in results):
        return (draft_refused if is_draft else refused)(ErrorCode.inconsistent_cluster_id)
    if is_draft:
        return draft_response_of(results)
    return response_of(results, _address(broker, results[0][1].leader_id))


def _address(broker: Broker, leader_id: int) -> tuple[str, int] | None:
    """Return the address at which clients reach the leader, or None if it has never registered."""
    registration = broker.loader.image.brokers.get(leader_id)
    return None if registration is None else registration.address("")
