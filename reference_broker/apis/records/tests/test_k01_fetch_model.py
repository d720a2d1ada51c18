"""Random conversations in the final revision, compared with a model that recomputes everything from scratch."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from reference_broker.apis.records.tests.fetch_machine import ALL, LIMITS, PLACES, WANTED, Fetching, Turn, turns
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchTopic


class FetchingFinal(Fetching):
    version = 12

    @rule(
        data=st.data(),
        wanted=WANTED,
        limits=LIMITS,
        epoch=st.sampled_from([0, 0, 0, -1]),
        version=st.sampled_from([12, 13]),
    )
    def full_fetch(self, data: Any, wanted: Any, limits: dict[str, int], epoch: int, version: int) -> None:
        known = data.draw(st.sampled_from([0, 0, 77, *self.seen[-3:]]))
        self.send(self.build(known, epoch, version, wanted, (), 0, limits), version)

    @precondition(lambda self: self.of(False))
    @rule(
        data=st.data(),
        wanted=WANTED,
        limits=LIMITS,
        forget=st.lists(PLACES, max_size=2),
        epoch=st.sampled_from(["right"] * 8 + ["wrong", "again", "negative"]),
        mixed=st.sampled_from([False] * 9 + [True]),
        old=st.sampled_from([0, 0, 0, 1, 2]),
    )
    def incremental_fetch(
        self, data: Any, wanted: Any, limits: dict[str, int], forget: Any, epoch: str, mixed: bool, old: int
    ) -> None:
        session_id = data.draw(st.sampled_from(self.of(False)))
        session = self.naive.sessions[session_id]
        version = 13 if session.by_id != mixed else 12
        if session.follower:
            limits = {**limits, "replica_id": 8}
        number = {"right": session.epoch, "wrong": session.epoch + 1, "again": session.epoch - 1, "negative": -5}[epoch]
        if number != 0:
            self.send(self.build(session_id, number, version, wanted, forget, old, limits), version)

    @precondition(lambda self: self.of(False))
    @rule(data=st.data(), limits=LIMITS, take=st.booleans())
    def quiet_fetch(self, data: Any, limits: dict[str, int], take: bool) -> None:
        """Fetch as most requests do: name the processed partitions, or none."""
        session_id = data.draw(st.sampled_from(self.of(False)))
        self.send_in_session(session_id, limits, "next", "processed" if take else "nothing")

    @precondition(lambda self: self.of(False))
    @rule(data=st.data(), talk=turns("next", "next", "next", "next", "again"))
    def conversation(self, data: Any, talk: list[Turn]) -> None:
        self.converse(data.draw(st.sampled_from(self.of(False))), talk)

    @rule(version=st.sampled_from([12, 13]))
    def fetch_of_all(self, version: int) -> None:
        """Open a session that later conversations find, and whose partitions exist."""
        limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20}
        self.send(self.build(0, 0, version, ALL, (), 0, limits), version)

    def send_in_session(self, session_id: int, limits: dict[str, int], number: str, names: str) -> None:
        session = self.naive.sessions[session_id]
        epoch = session.epoch if number == "next" else session.epoch - 1
        if epoch == 0:
            return  # a full request
        topics: list[FetchTopic] = []
        for part in session.parts if names == "processed" else []:
            partition: Any = self.naive.led(session, part)
            if partition is not None and part.offset < partition.log.high_watermark:
                one = FetchPartition(part.key[1], partition.log.high_watermark, 100)
                key: Any = part.key[0]
                topics.append(FetchTopic("", key, [one]) if session.by_id else FetchTopic(key, bytes(16), [one]))
        some: dict[str, Any] = {**limits, "topics": topics}
        request = FetchRequest(session_id=session_id, session_epoch=epoch, **some)
        self.send(request, 13 if session.by_id else 12)


FetchingFinal.TestCase.settings = settings(stateful_step_count=40)


@pytest.mark.clause(
    "F-3",
    "F-4",
    "F-5",
    "F-6",
    "F-7",
    "F-8",
    "F-9",
    "F-10",
    "F-12",
    "F-13",
    "F-14",
    "F-15",
    "F-16",
    "F-18",
    "F-20",
    "F-21",
)
@pytest.mark.thorough
class TestFetching(FetchingFinal.TestCase):  # type: ignore[misc, valid-type]
    pass
