"""Vote: a candidate requests this voter's vote, or (pre-vote) whether it would grant it.

* The vote and its epoch are durable before the response.
* Unlike Kafka: voters are configured, so directory IDs decide nothing.

Version notes:
* v2: a pre-vote binds nobody.

KIPs: 595, 853, 996.
"""

from kio.schema.vote.v2.request import VoteRequest

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.registry import Api
from reference_broker.quorum.raft_handlers import handle_vote


def handle(broker: Broker, call: Call, body: VoteRequest) -> None:
    """Pass the request to the quorum, which responds."""
    handle_vote(broker.quorum, body, call.respond)


API = Api.of(VoteRequest, handle)
