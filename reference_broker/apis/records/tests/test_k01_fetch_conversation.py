"""Both sides of a session, while requests and responses are lost or duplicated: no record is lost or repeated."""

from random import Random

import pytest

from reference_broker.apis.tests.fetch_world import LARGE, FetchWorld, id_of, real_log, real_records
from reference_broker.client.consumer import ConsumerState
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.session_handler import FetchPlan, SessionHandler, Wanted, make_session_handler
from reference_broker.wire.fetch import FetchRequest, FetchResponse

PLACES = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0), TopicPartition("b", 1)]
REVISIONS = pytest.mark.parametrize("revision", ["final", "first"])


class Conversation:
    """One fetcher; ``faults`` selects the fault of each request."""

    def __init__(self, revision: str, seed: int, slots: int = 2) -> None:
        self.world = FetchWorld(slots=slots, log_of=real_log)
        self.world.create("a", 2)
        self.world.create("b", 2)
        self.random = Random(seed)
        self.handler: SessionHandler = make_session_handler(revision)
        self.consumer = ConsumerState()
        self.read: dict[TopicPartition, list[int]] = {place: [] for place in PLACES}
        self.wanted = list(PLACES)
        for place in PLACES:
            self.consumer.seek(place, 0)
        self.plans: list[FetchPlan] = []

    def append(self, topic_partition: TopicPartition) -> None:
        partition = self.world.partition(*topic_partition)
        partition.log.append(self.world.broker.now, real_records([1]), 0)
        partition.log.advance_high_watermark(partition.log.log_end_offset)
        partition.changed()

    def poll(self, fate: str) -> None:
        handler = self.handler
        wanted = {
            partition: Wanted(id_of(self.world, partition.topic), self.consumer.positions[partition].offset, LARGE)
            for partition in self.wanted
        }
        plan = handler.build(wanted)
        self.plans.append(plan)
        request = plan.request(plan.version(13), 0, 1, self.random.choice([LARGE, 150, 70]))
        if fate == "request lost":
            return handler.handle_lost()
        response = self._send(plan, request)
        if fate == "request twice":
            self._send(plan, request)
        if fate == "response lost":
            return handler.handle_lost()
        handled = handler.handle_response(response)
        for partition, data in handled.partitions if handled.problem is None else ():
            before = self.consumer.positions[partition].offset
            for batch in self.consumer.take(partition, data):
                self.read[partition].extend(range(max(batch.header.base_offset, before), batch.header.last_offset + 1))
        return None

    def _send(self, plan: FetchPlan, request: FetchRequest) -> FetchResponse:
        call = self.world.send(request, plan.version(13))
        return call.response

    def run(self, polls: int) -> None:
        fates = ["delivered"] * 6 + ["response lost", "request lost", "request twice", "response lost"]
        for _ in range(polls):
            for _ in range(self.random.randrange(4)):
                self.append(self.random.choice(PLACES))
            if self.random.random() < 0.1:
                self.wanted = self.random.sample(PLACES, self.random.randint(1, 4))
            self.poll(self.random.choice(fates))
        self.wanted = list(PLACES)
        for _ in range(40):
            self.poll("delivered")


@pytest.mark.thorough
@pytest.mark.clause("F-20", "F-11", "G-3", "G-6", "G-8")
@REVISIONS
@pytest.mark.parametrize("seed", range(12))
def test_positions_stay_contiguous_and_watermarks_converge_despite_losses(revision: str, seed: int) -> None:
    talk = Conversation(revision, seed)
    talk.run(80)
    for place in PLACES:
        end = talk.world.partition(*place).log.log_end_offset
        assert talk.read[place] == list(range(end)), f"{revision} {seed} {place}"
        assert talk.consumer.positions[place].high_watermark == end


@pytest.mark.clause("G-3", "F-10")
def test_lost_response_causes_full_fetch_in_final_revision_and_retransmission_in_first() -> None:
    def after_a_loss(revision: str) -> FetchPlan:
        talk = Conversation(revision, 1)
        for fate in ("delivered", "delivered", "response lost", "delivered"):
            talk.append(PLACES[0])
            talk.poll(fate)
        return talk.plans[-1]

    final, first = after_a_loss("final"), after_a_loss("first")
    assert (final.is_full, len(final.to_send)) == (True, len(PLACES))
    assert (first.is_full, len(first.to_send)) == (False, 1)
