"""A fetch session of a case (KIP-227)."""

from collections.abc import Sequence
from typing import Any

from bench.probe.case import NotAdvertised
from bench.probe.data import FETCH, fetch_request, wanted
from bench.probe.surroundings import Surroundings, Topic
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchResponse

CLOSE, OPEN = -1, 0
"""Session epochs with a meaning of their own."""


class Session:
    """It counts its own epochs."""

    def __init__(self, at: Surroundings, topic: Topic, *partitions: FetchPartition, **fields: Any) -> None:
        self._at, self._topic = at, topic
        self.first = self._ask(0, OPEN, partitions or (wanted(),), (), **fields)
        at.expect("error code of the answer that opens the session", self.first.error_code, ErrorCode.none)
        if self.first.session_id == 0:
            raise NotAdvertised("the broker made no session, as it may")
        self.id = self.first.session_id
        self.epoch = 1

    def next(
        self, *partitions: FetchPartition, forget: Sequence[int] = (), epoch: int | None = None, **fields: Any
    ) -> FetchResponse:
        """The next incremental fetch, or one with another epoch, which does not count."""
        answer = self._ask(self.id, self.epoch if epoch is None else epoch, partitions, forget, **fields)
        if epoch is None:
            self.epoch += 1
        return answer

    def _ask(
        self, session_id: int, epoch: int, partitions: Sequence[FetchPartition], forget: Sequence[int], **fields: Any
    ) -> FetchResponse:
        topics = [(self._topic, partitions)] if partitions else []
        forgotten = [(self._topic, forget)] if forget else []
        on = fields.pop("on", None)
        request = fetch_request(self._at, topics, forgotten, session_id=session_id, session_epoch=epoch, **fields)
        answer = self._at.ask(FETCH, request, on=on)
        assert isinstance(answer, FetchResponse)
        return answer
