"""EndQuorumEpoch: the leader resigns, and names its preferred successors.

* The first of the preferred successors requests votes at once, each of the others a little later.
* Unlike Kafka: the endpoints of the leader are read past. Every node knows those of its voters.

KIPs: 595, 853.
"""

from kio.schema.end_quorum_epoch.v1.request import EndQuorumEpochRequest

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.registry import Api
from reference_broker.quorum.raft_handlers import handle_end_quorum_epoch


def handle(broker: Broker, call: Call, body: EndQuorumEpochRequest) -> None:
    """Pass the request to the quorum, which responds."""
    handle_end_quorum_epoch(broker.quorum, body, call.respond)


API = Api.of(EndQuorumEpochRequest, handle)
