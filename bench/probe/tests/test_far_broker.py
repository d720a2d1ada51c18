"""What a broker far away costs: requests that need not wait for one another do not."""

from unittest.mock import Mock

from bench.probe.cases.sessions import AT_ONCE, _pipelined
from reference_broker.wire.fetch import FetchRequest


def test_many_fetches_cost_few_round_trips() -> None:
    said: list[str] = []
    far = Mock()
    far.send.side_effect = lambda *_: said.append("sent")
    far.receive.side_effect = lambda *_: said.append("received")
    count = 2 * AT_ONCE + 1
    assert len(_pipelined(far, 18, [FetchRequest()] * count)) == count
    assert said == ["sent"] * AT_ONCE + ["received"] * AT_ONCE + said[: 2 * AT_ONCE] + ["sent", "received"]
