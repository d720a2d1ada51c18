"""EndQuorumEpoch: the leader says that it resigns, and who may follow it first (KIP-595)."""

from kio.schema.end_quorum_epoch.v1.request import EndQuorumEpochRequest

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.wire.apis import ApiKey

CARD = Card(
    api_key=ApiKey.END_QUORUM_EPOCH,
    min_version=0,
    max_version=1,
    behaviour="The first of the preferred successors asks for votes at once, the others a little later each.",
    simplifications="The leader's endpoints are read past: every node knows those of its voters.",
    kips=(595, 853),
)


def handle(broker: Broker, call: Call, body: object) -> None:
    """Answered by the quorum."""
    assert isinstance(body, EndQuorumEpochRequest)
    broker.quorum.handle_end_quorum_epoch(body, call.respond)
