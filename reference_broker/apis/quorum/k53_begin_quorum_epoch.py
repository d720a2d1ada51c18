"""BeginQuorumEpoch: a voter says that it has become the leader (KIP-595)."""

from kio.schema.begin_quorum_epoch.v1.request import BeginQuorumEpochRequest

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.wire.apis import ApiKey

CARD = Card(
    api_key=ApiKey.BEGIN_QUORUM_EPOCH,
    min_version=0,
    max_version=1,
    behaviour="The new epoch is durable before the answer.",
    simplifications="The leader's endpoints are read past: every node knows those of its voters.",
    kips=(595, 853),
)


def handle(broker: Broker, call: Call, body: object) -> None:
    """Answered by the quorum."""
    assert isinstance(body, BeginQuorumEpochRequest)
    broker.quorum.handle_begin_quorum_epoch(body, call.respond)
