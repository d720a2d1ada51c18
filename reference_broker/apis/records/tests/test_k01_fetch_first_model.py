"""Random conversations in the first revision, in slots that it shares with the final one, against the same model."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from reference_broker.apis.records.tests.fetch_machine import ALL, HELD, LIMITS, WANTED, Fetching, Turn, turns
from reference_broker.apis.records.tests.fetch_naive_values import FirstSession
from reference_broker.wire.fetch import INCREMENTAL_FETCH, FetchPartition, FetchTopic

MOSTLY_WIDE = st.fixed_dictionaries(
    {
        "max_wait_ms": st.sampled_from([0, 0, 0, 100]),
        "min_bytes": st.sampled_from([1, 0, 150]),
        "max_bytes": st.sampled_from([1 << 20, 200, 60]),
    }
)


class FetchingFirst(Fetching):
    version = 1000

    @initialize()
    def a_session(self) -> None:
        """Open a session of all partitions."""
        for topic in ("a", "b"):
            if topic not in self.world.controller.image.topics:
                self.create(topic)
        limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20}
        self.send(self.build(0, 0, 1000, ALL, (), 0, limits), 1000)

    @rule(place=HELD, count=st.integers(2, 4))
    def append_some(self, place: tuple[str, int], count: int) -> None:
        """Append more than a partition's limit."""
        for _ in range(count):
            self.append_one(place, 100, True)

    @rule(data=st.data(), wanted=WANTED, limits=LIMITS, number=st.sampled_from([0] * 9 + [1]))
    def full_fetch(self, data: Any, wanted: Any, limits: dict[str, int], number: int) -> None:
        known = data.draw(st.sampled_from([0, 0, 77, *self.of(True), *self.seen[-2:]]))
        self.send(self.build(known, number, 1000, wanted, (), 0, limits), 1000)

    @rule(wanted=WANTED, limits=LIMITS)
    def full_fetch_in_the_final_revision(self, wanted: Any, limits: dict[str, int]) -> None:
        self.send(self.build(0, 0, 12, wanted, (), 0, limits), 12)

    @precondition(lambda self: self.of(True))
    @rule(data=st.data(), limits=MOSTLY_WIDE, processed=st.booleans())
    def next_number(self, data: Any, limits: dict[str, int], processed: bool) -> None:
        """Fetch as most requests do: name the processed partitions, or none."""
        self.incremental(data, limits, "next", "processed" if processed else "nothing", ())

    @precondition(lambda self: self.of(True))
    @rule(data=st.data(), limits=MOSTLY_WIDE)
    def same_number(self, data: Any, limits: dict[str, int]) -> None:
        self.incremental(data, limits, "again", "nothing", ())

    @precondition(lambda self: self.of(True))
    @rule(
        data=st.data(),
        wanted=WANTED,
        limits=LIMITS,
        number=st.sampled_from(["next", "next", "again", "again", "wrong", "zero"]),
        names=st.sampled_from(["what it holds", "what it holds", "anything"]),
    )
    def any_number(self, data: Any, wanted: Any, limits: dict[str, int], number: str, names: str) -> None:
        self.incremental(data, limits, number, names, wanted)

    @precondition(lambda self: self.of(True))
    @rule(data=st.data(), talk=turns("next", "next", "next", "again", "again", "full"))
    def conversation(self, data: Any, talk: list[Turn]) -> None:
        self.converse(data.draw(st.sampled_from(self.of(True))), talk)

    @precondition(lambda self: self.of(True))
    @rule(data=st.data(), rounds=st.integers(1, 4), number=st.sampled_from(["next", "next", "again"]))
    def omitted_for_a_while(self, data: Any, rounds: int, number: str) -> None:
        """One batch uses up the response limit, then the fetcher gets all of it from elsewhere."""
        talk: list[Turn] = [("next", "nothing", False, 60, [("append", each[0]) for each in ALL])]
        talk += [("next", "nothing", False, 60, [])] * rounds
        talk.append((number, "processed", False, 1 << 20, []))
        self.converse(data.draw(st.sampled_from(self.of(True))), talk)

    def incremental(self, data: Any, limits: dict[str, int], number: str, names: str, wanted: Any) -> None:
        self.send_in_session(data.draw(st.sampled_from(self.of(True))), limits, number, names, wanted)

    def send_in_session(
        self, session_id: int, limits: dict[str, int], number: str, names: str, wanted: Any = ()
    ) -> None:
        session = self.naive.sessions[session_id]
        assert isinstance(session, FirstSession)
        if number == "full":
            limits = {**limits, "replica_id": 8 if session.follower else -1}
            self.send(self.build(session_id, 0, 1000, ALL, (), 0, limits), 1000)
            return
        if session.full and not session.responded:
            return  # A fetcher without a response to its full request sends a full request again,
        if not session.responded and number == "next":
            number = "again"  # and one without a response to this number retransmits it.
        if session.follower:
            limits = {**limits, "replica_id": 8}
        sent_number = {"next": session.number + 1, "again": session.number, "wrong": session.number + 2, "zero": 0}[
            number
        ]
        held = [part.key for part in session.parts]
        if names != "anything":
            wanted = [each for each in wanted if each[0] in held]
        request = self.build(session_id, sent_number, 1000, wanted, (), 0, limits)
        for part in session.parts if names == "processed" else []:
            partition: Any = self.naive.led(session, part)
            if partition is not None and part.offset < partition.log.high_watermark:
                one = FetchPartition(part.key[1], partition.log.high_watermark, part.max_bytes)
                request = replace(request, topics=[*request.topics, FetchTopic(str(part.key[0]), bytes(16), [one])])
        self.send(replace(request, fetch_type=INCREMENTAL_FETCH), 1000)


FetchingFirst.TestCase.settings = settings(stateful_step_count=40)


@pytest.mark.clause("G-1", "G-3", "G-4", "G-5", "G-6", "G-7", "G-8", "G-9", "G-10", "G-11", "F-21")
@pytest.mark.thorough
class TestFetching(FetchingFirst.TestCase):  # type: ignore[misc, valid-type]
    pass
