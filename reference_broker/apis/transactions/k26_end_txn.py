"""EndTxn: commits or aborts a transaction.

* The response is sent when PrepareCommit or PrepareAbort is replicated. The markers are written after it.
* Until every partition has its marker, the producer gets CONCURRENT_TRANSACTIONS for further requests.
* A retried end, whose response was lost, gets the same outcome.
* Unlike Kafka: in v5 CONCURRENT_TRANSACTIONS precedes the check of the producer ID, since a producer may have its next
  ID before its last transaction is complete. Kafka checks the ID first: INVALID_PRODUCER_ID_MAPPING.

Version notes:
* v2: a producer that is fenced gets PRODUCER_FENCED. Before, it gets INVALID_PRODUCER_EPOCH.
* v5: the end raises the producer's epoch, or gives it a new producer ID when the epochs are used up. The response has
  both. A producer that does not know whether its transaction has begun may abort it.

KIPs: 98, 360, 890.
"""

from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.end_txn.v5.response import EndTxnResponse
from kio.schema.types import ProducerId
from kio.static.primitive import i16

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, error_for_version
from reference_broker.transactions.coordinator import EndRequest
from reference_broker.transactions.transaction_metadata import ProducerIdAndEpoch
from reference_broker.wire.errors import Error, ErrorCode

KNOWS_FENCED_FROM = 2
RAISES_EPOCH_FROM = 5


def handle(broker: Broker, call: Call, body: EndTxnRequest) -> None:
    def respond(error: Error, producer: ProducerIdAndEpoch) -> None:
        call.respond(
            EndTxnResponse(
                throttle_time=NO_THROTTLE,
                error_code=ErrorCode(error_for_version(error, call.api_version, KNOWS_FENCED_FROM)),
                producer_id=ProducerId(producer.producer_id),
                producer_epoch=i16(producer.producer_epoch),
            )
        )

    request = EndRequest(
        body.transactional_id,
        ProducerIdAndEpoch(int(body.producer_id), int(body.producer_epoch)),
        body.committed,
        2 if call.api_version >= RAISES_EPOCH_FROM else 0,
    )
    broker.transactions.end_transaction(request, callback(call, respond))


API = Api.of(EndTxnRequest, handle)
