"""Vote: a voter asks for this one's vote, or whether it would give it (KIP-595, KIP-996)."""

from kio.schema.vote.v2.request import VoteRequest

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.wire.apis import ApiKey

CARD = Card(
    api_key=ApiKey.VOTE,
    min_version=0,
    max_version=2,
    behaviour="The vote and its epoch are durable before the answer. A pre-vote (version 2) binds nobody.",
    simplifications="Voters are configured, so directory IDs decide nothing.",
    kips=(595, 853, 996),
)


def handle(broker: Broker, call: Call, body: object) -> None:
    """Answered by the quorum."""
    assert isinstance(body, VoteRequest)
    broker.quorum.handle_vote(body, call.respond)
