"""The time in which Kafka's consumer read, from Java's log of loaded classes."""

import pytest

from bench.peers.node import PeerError
from bench.peers.stock_clients import reading_s

LOG = """[0.010s] java.lang.Object source: shared objects file
[0.700s] org.apache.kafka.common.requests.FetchResponse source: file:/kafka-clients.jar
[0.858s] org.apache.kafka.common.requests.FetchResponse$$Lambda$332/0x00007f source: FetchResponse
[0.859s] org.apache.kafka.common.requests.FetchResponse$$Lambda$333/0x00007f source: FetchResponse
[2.283s] org.apache.kafka.clients.consumer.CloseOptions source: file:/kafka-clients.jar
[2.793s] java.util.IdentityHashMap$KeyIterator source: shared objects file
"""


def test_from_the_first_answer_to_the_last_record() -> None:
    assert reading_s(LOG) == pytest.approx(2.283 - 0.858)


@pytest.mark.parametrize("gone", ["$$Lambda", "CloseOptions"])
def test_a_log_that_does_not_tell_is_no_result(gone: str) -> None:
    with pytest.raises(PeerError, match="does not tell"):
        reading_s(LOG.replace(gone, "Other"))
