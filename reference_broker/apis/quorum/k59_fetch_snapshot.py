"""FetchSnapshot: tells bytes of a snapshot of the metadata log, from its leader.

* Errors come in Kafka's order: cluster ID, number of partitions, partition, epoch, leader, leaving, snapshot, position.
* One answer has at most 8 MiB.
* The whole snapshot is checked when a download begins. A damaged one is KAFKA_STORAGE_ERROR, and a new one is made.
* Unlike Kafka: there are no directory IDs. A request for no topic is INVALID_REQUEST, where Kafka fails.

Version notes:
* v1000: an earlier layout of KIP-630. It says whether more remains instead of the size, and of what kind the bytes are.

KIPs: 595, 630, 853.
"""

from typing import Protocol

from kio.schema.fetch_snapshot.v1.request import FetchSnapshotRequest

from reference_broker.apis.api import Api
from reference_broker.apis.call import Call, contained
from reference_broker.apis.parts import HasLoader, HasNow, HasQuorum, HasSnapshots
from reference_broker.quorum.snapshots.messages import (
    DRAFT_VERSION,
    Piece,
    SnapshotRequest,
    draft_refused,
    draft_response_of,
    read_request,
    refused,
    response_of,
)
from reference_broker.quorum.snapshots.serving import refusal, serve
from reference_broker.wire.errors import ErrorCode


class Needs(HasQuorum, HasSnapshots, HasNow, HasLoader, Protocol):
    """What this API uses of its broker."""


def handle(broker: Needs, call: Call, body: FetchSnapshotRequest) -> object | None:
    """Answers with a FetchSnapshotResponse, or a FetchSnapshotResponse1000 for the draft. Bytes are sent once the
    snapshot is checked."""
    is_draft = call.api_version == DRAFT_VERSION
    request = read_request(body)
    if request is None:
        error = broker.quorum.leader_check(body.cluster_id, broker.quorum.epoch)
        if error is not ErrorCode.inconsistent_cluster_id:
            error = ErrorCode.invalid_request
        return draft_refused(error) if is_draft else refused(error)
    error_piece = refusal(request, broker.snapshots, broker.quorum, is_draft)
    if error_piece is not None:
        return _answer(broker, request, error_piece, is_draft)

    def respond() -> None:
        piece = serve(request, broker.snapshots, broker.quorum, broker.now.mono_us, is_draft)
        call.respond(_answer(broker, request, piece, is_draft))

    broker.snapshot_checks.before_serving(request.id, request.position, contained(call, respond))
    return None


API = Api.of(FetchSnapshotRequest, handle)


def _answer(broker: Needs, request: SnapshotRequest, piece: Piece, is_draft: bool) -> object:
    if piece.error is ErrorCode.inconsistent_cluster_id:
        return draft_refused(piece.error) if is_draft else refused(piece.error)
    if is_draft:
        return draft_response_of(request.topic, request.partition, piece)
    return response_of(request.topic, request.partition, piece, _address(broker, piece.leader_id))


def _address(broker: Needs, leader_id: int) -> tuple[str, int] | None:
    """Where clients reach the leader, or None if it has never registered."""
    known = broker.loader.image.brokers.get(leader_id)
    return None if known is None else known.address("")
