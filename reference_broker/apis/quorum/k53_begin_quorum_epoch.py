"""BeginQuorumEpoch: a voter reports that it has become the leader.

* The new epoch is durable before the response.
* Unlike Kafka: the endpoints of the leader are read past. Every node knows those of its voters.

KIPs: 595, 853.
"""

from kio.schema.begin_quorum_epoch.v1.request import BeginQuorumEpochRequest

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.registry import Api
from reference_broker.quorum.raft_handlers import handle_begin_quorum_epoch


def handle(broker: Broker, call: Call, body: BeginQuorumEpochRequest) -> None:
    """Pass the request to the quorum, which responds."""
    handle_begin_quorum_epoch(broker.quorum, body, call.respond)


API = Api.of(BeginQuorumEpochRequest, handle)
