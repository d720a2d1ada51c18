"""FetchSnapshot: the bytes of a snapshot of the metadata log, from its leader (KIP-630).

Version 1000 is the page's earlier layout (``wire.drafts``): it says whether more remains instead of the size, and of
what kind the bytes are.
"""

from kio.schema.fetch_snapshot.v1.request import FetchSnapshotRequest

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.quorum.snapshots.messages import (
    DRAFT_VERSION,
    draft_refused,
    draft_response_of,
    read_request,
    refused,
    response_of,
)
from reference_broker.quorum.snapshots.serving import serve
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error

CARD = Card(
    api_key=ApiKey.FETCH_SNAPSHOT,
    min_version=0,
    max_version=1,
    behaviour="Errors in Kafka's order: cluster ID, number of partitions, partition, epoch, leader, leaving, snapshot, "
    "position. At most 8 MiB in one answer.",
    simplifications="No directory IDs. A request for no topic is INVALID_REQUEST, where Kafka fails.",
    kips=(595, 630, 853),
)


def handle(broker: Broker, call: Call, body: object) -> object:
    """FetchSnapshotResponse, in the draft FetchSnapshotResponse1000."""
    assert isinstance(body, FetchSnapshotRequest)
    is_draft = call.api_version == DRAFT_VERSION
    request = read_request(body)
    if request is None:
        error = broker.quorum.leader_check(body.cluster_id, broker.quorum.epoch)
        if error is not Error.INCONSISTENT_CLUSTER_ID:
            error = Error.INVALID_REQUEST
        return draft_refused(error) if is_draft else refused(error)
    piece = serve(request, broker.snapshots, broker.quorum, broker.now.mono_us, is_draft)
    if piece.error is Error.INCONSISTENT_CLUSTER_ID:
        return draft_refused(piece.error) if is_draft else refused(piece.error)
    if is_draft:
        return draft_response_of(request.topic, request.partition, piece)
    return response_of(request.topic, request.partition, piece, _address(broker, piece.leader_id))


def _address(broker: Broker, leader_id: int) -> tuple[str, int] | None:
    """Where clients reach it; None where it has never registered."""
    known = broker.loader.image.brokers.get(leader_id)
    return None if known is None else (known.host, known.port)
