"""Sessions of brokers: fencing, unfencing, controlled shutdown. The controller's own slowness fences no broker."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from reference_broker.controller.broker_heartbeats import CHECKS_PER_SESSION, Heartbeat, HeartbeatResult
from reference_broker.controller.planning.brokers import Registration, Unregistration, registration_problem
from reference_broker.controller.write_operations import ApiError
from reference_broker.metadata.tests.metadata_world import MetadataWorld, started, topic_id, topic_records
from reference_broker.wire.errors import Error, ErrorCode

SESSION_MS = 9000


def registration(
    broker_id: int,
    incarnation: bytes = b"i" * 16,
    cluster_id: str = "cluster",
    features: tuple[tuple[str, int, int], ...] = (
        ("metadata.version", 7, 27),
        ("eligible.leader.replicas.version", 0, 1),
        ("transaction.version", 0, 2),
    ),
) -> Registration:
    return Registration(broker_id, cluster_id, incarnation, (("PLAINTEXT", "h", 9092, 0),), features, None, ())


def request_registration(world: MetadataWorld, broker_id: int, incarnation: bytes) -> int | ApiError:
    epochs: list[int | ApiError] = []
    world.controller.register_broker(registration(broker_id, incarnation), epochs.append)
    world.settle()
    return epochs[0]


def register(world: MetadataWorld, broker_id: int, incarnation: bytes = b"i" * 16) -> int:
    """Register the broker after the session of an earlier incarnation has expired. Return its epoch."""
    world.controller.heartbeats.forget(broker_id)
    epoch = request_registration(world, broker_id, incarnation)
    assert isinstance(epoch, int)
    return epoch


def beat(
    world: MetadataWorld,
    broker_id: int,
    epoch: int,
    *,
    offset: int = 10**6,
    fence: bool = False,
    shut_down: bool = False,
) -> HeartbeatResult | ApiError:
    return world.controller.heartbeats.heartbeat(Heartbeat(broker_id, epoch, offset, fence, shut_down))


def unfenced(*broker_ids: int, **config: str) -> tuple[MetadataWorld, dict[int, int]]:
    world = started(**config)
    epochs = {}
    for broker_id in broker_ids:
        epochs[broker_id] = register(world, broker_id)
        beat(world, broker_id, epochs[broker_id])
        world.settle()
    return world, epochs


def fenced(world: MetadataWorld) -> list[int]:
    return [broker_id for broker_id, broker in sorted(world.controller.image.brokers.items()) if broker.fenced]


def pass_time(world: MetadataWorld, milliseconds: int) -> None:
    world.ports.advance(milliseconds)
    world.settle()


@pytest.mark.clause("ClusterControlManagerTest.testReplay", "BrokerHeartbeatManagerTest.testCalculateNextBrokerState")
def test_registered_broker_is_unfenced_once_it_requests_and_has_its_registration() -> None:
    world = started()
    epoch = register(world, 7)
    assert beat(world, 7, epoch, fence=True) == HeartbeatResult(True, True, False)
    assert beat(world, 7, epoch, offset=epoch - 1) == HeartbeatResult(False, True, False)
    world.settle()
    assert fenced(world) == [7]
    assert beat(world, 7, epoch, offset=epoch) == HeartbeatResult(True, True, False)
    world.settle()
    assert fenced(world) == []
    assert beat(world, 7, epoch) == HeartbeatResult(True, False, False)
    assert world.ports.notes_of("broker_unfenced") == [{"broker": 7}]


@pytest.mark.clause(
    "ClusterImageTest.testBrokerEpochForNonExistentBroker",
    "BrokerHeartbeatManagerTest.testTouchThrowsExceptionUnlessRegistered",
    "BrokerHeartbeatTrackerTest.testHasValidSessionIsFalseForUnknownBroker",
    "BrokerHeartbeatTrackerTest.testHasValidSessionIsFalseForUnknownBrokerEpoch",
)
def test_heartbeat_of_unknown_broker_or_stale_epoch_is_rejected() -> None:
    world, epochs = unfenced(7)
    assert _error(beat(world, 8, 1)) is ErrorCode.stale_broker_epoch
    again = register(world, 7, b"j" * 16)
    assert again > epochs[7]
    assert _error(beat(world, 7, epochs[7])) is ErrorCode.stale_broker_epoch
    world.lose()
    assert _error(beat(world, 7, again)) is ErrorCode.not_controller


def test_broker_whose_removal_failed_is_fenced_when_silent() -> None:
    world, _ = unfenced(7)
    world.controller.heartbeats.forget(7)
    world.ports.advance(SESSION_MS)
    world.settle()
    assert fenced(world) == [7]


def _error(result: HeartbeatResult | ApiError) -> Error:
    assert isinstance(result, ApiError)
    return result.error


@pytest.mark.clause(
    "ClusterImageTest.testApplyDelta1",
    "QuorumControllerTest.testFenceMultipleBrokers",
    "ClusterControlManagerTest.testReplay",
    "BrokerHeartbeatManagerTest.testHasValidSession",
    "BrokerHeartbeatTrackerTest.testUpdateContactTime",
)
def test_silent_broker_is_fenced_and_leads_nothing_until_heartbeat() -> None:
    world, epochs = unfenced(1, 2)
    world.submit(lambda: topic_records("t", topic_id(1), 2, 1), lambda _: None)
    world.submit(lambda: topic_records("u", topic_id(2), 1, 2), lambda _: None)
    world.settle()
    for _ in range(8):
        pass_time(world, 2000)
        beat(world, 2, epochs[2])
    assert fenced(world) == [1]
    assert world.ports.notes_of("broker_fenced") == [{"broker": 1}]
    assert [
        (partition.leader, partition.leader_epoch) for partition in world.controller.image.topics["t"].partitions
    ] == [(-1, 1)] * 2
    assert world.controller.image.topics["u"].partitions[0].leader == 2
    beat(world, 1, epochs[1])
    world.settle()
    assert fenced(world) == []
    assert [
        (partition.leader, partition.leader_epoch) for partition in world.controller.image.topics["t"].partitions
    ] == [(1, 2)] * 2


def test_unfencing_new_incarnation_bumps_leader_epochs() -> None:
    world, _ = unfenced(1)
    world.submit(lambda: topic_records("t", topic_id(1)), lambda _: None)
    world.settle()
    epoch = register(world, 1, b"j" * 16)
    assert fenced(world) == [1]
    beat(world, 1, epoch)
    world.settle()
    (partition,) = world.controller.image.topics["t"].partitions
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 2, (1,))


@pytest.mark.clause(
    "ClusterControlManagerTest.testReplayBrokerRegistrationChangeRecord",
    "BrokerHeartbeatManagerTest.testCalculateNextBrokerState",
)
def test_broker_after_controlled_shutdown_needs_new_registration() -> None:
    world, epochs = unfenced(1)
    world.submit(lambda: topic_records("t", topic_id(1)), lambda _: None)
    world.settle()
    assert beat(world, 1, epochs[1], shut_down=True) == HeartbeatResult(True, False, False)
    world.settle()
    assert world.controller.image.topics["t"].partitions[0].leader == -1
    assert beat(world, 1, epochs[1], shut_down=True) == HeartbeatResult(True, True, True)
    beat(world, 1, epochs[1])
    world.settle()
    assert fenced(world) == [1]
    beat(world, 1, register(world, 1, b"j" * 16))
    world.settle()
    assert (fenced(world), world.controller.image.brokers[1].in_controlled_shutdown) == ([], False)


@pytest.mark.clause("BrokerHeartbeatTrackerTest.testMaybeRemoveExpiredWithAllUpToDate")
def test_heartbeats_complete_during_long_change_without_fencing() -> None:
    world, epochs = unfenced(1, crucible_metadata_batch_max_bytes="512")
    results: list[ApiError | None] = []
    world.submit(lambda: topic_records("big", topic_id(1), 500), results.append)
    for _ in range(40):
        world.ports.step()
        world.ports.now_us += 1_000_000
        assert beat(world, 1, epochs[1]) == HeartbeatResult(True, False, False)
    assert results == []
    world.settle()
    assert (results, fenced(world)) == ([None], [])


def test_fencing_after_long_change_checks_session_again() -> None:
    world, epochs = unfenced(1, crucible_metadata_batch_max_bytes="512")
    world.submit(lambda: topic_records("big", topic_id(1), 500), lambda _: None)
    for _ in range(6):
        world.ports.now_us += 1_500_000
        world.controller.heartbeats._check()
    assert list(world.controller.heartbeats.pending) == [1]
    beat(world, 1, epochs[1])
    world.settle()
    assert fenced(world) == []


def test_pauses_of_controller_do_not_count_towards_session() -> None:
    world, epochs = unfenced(1)
    world.ports.now_us += 60_000_000
    world.settle()
    assert fenced(world) == []
    beat(world, 1, epochs[1])
    pass_time(world, SESSION_MS + 2000)
    assert fenced(world) == [1]


@pytest.mark.clause(
    "ClusterControlManagerTest.testBrokerContactTimesAreUpdatedOnClusterControlActivation",
    "BrokerHeartbeatTrackerTest.testIsExpiredIsFalseForTheCurrentTime",
    "BrokerHeartbeatTrackerTest.testIsExpiredIsFalseForTenNanosecondsAfter",
    "BrokerHeartbeatTrackerTest.testIsExpiredIsTrueAfterExpirationTime",
)
def test_new_controller_gives_brokers_full_session() -> None:
    world, epochs = unfenced(1)
    pass_time(world, SESSION_MS - 1000)
    world.lose()
    pass_time(world, 60_000)
    world.win()
    world.settle()
    pass_time(world, SESSION_MS - 2000)
    assert fenced(world) == []
    pass_time(world, 4000)
    assert fenced(world) == [1]
    assert not world.ports.timers.keys() - {world.controller.heartbeats._timer, world.controller.balance._timer}
    assert epochs


def test_fencing_before_metadata_transactions_uses_plain_batches() -> None:
    world, _ = unfenced(1, crucible_bootstrap_metadata_version="12")
    for number in range(10):
        world.submit(partial(topic_records, f"t{number}", topic_id(number), 50), lambda _: None)
    world.settle()
    pass_time(world, SESSION_MS + 3000)
    leaders = {partition.leader for topic in world.controller.image.topics.values() for partition in topic.partitions}
    assert (leaders, fenced(world)) == ({-1}, [1])
    assert "begin" not in world.kinds()


@pytest.mark.clause(
    "ClusterControlManagerTest.testRegistrationWithIncorrectClusterId",
    "ClusterControlManagerTest.testRegistrationWithUnsupportedFeature",
    "ClusterControlManagerTest.testRegistrationWithUnsupportedMetadataVersion",
)
@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (registration(1, cluster_id="other"), ErrorCode.inconsistent_cluster_id),
        (registration(1, features=()), ErrorCode.unsupported_version),
        (registration(1, features=(("metadata.version", 1, 24),)), ErrorCode.unsupported_version),
        (replace(registration(1), listeners=()), ErrorCode.invalid_registration),
    ],
)
def test_invalid_registration_returns_error(wanted: Registration, error: ErrorCode) -> None:
    problem = registration_problem(wanted, "cluster", started().controller.latest)
    assert problem is not None
    assert problem.error is error


@pytest.mark.clause("ReplicationControlManagerTest.testRemoveLeaderships")
def test_unregistered_broker_leads_nothing() -> None:
    world, _ = unfenced(1)
    world.submit(lambda: topic_records("t", topic_id(1)), lambda _: None)
    world.settle()
    outcomes: list[ApiError | None] = []
    world.controller.append_write_event(Unregistration(1, world.controller.heartbeats), outcomes.append)
    world.settle()
    image = world.controller.image
    assert outcomes == [None]
    assert dict(image.brokers) == {}
    assert image.topics["t"].partitions[0].leader == -1


class Sessions(RuleBasedStateMachine):
    """Brokers send heartbeats, fall silent, restart; the controller pauses, changes, plans long changes.

    A broker that sent a heartbeat within the session timeout of the controller's running time is not fenced; one that
    was silent for two of them is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = started(crucible_metadata_batch_max_bytes="512")
        self.epochs: dict[int, int] = {}
        self.incarnations = 0
        self.last_ms: dict[int, int] = {}
        self.serving: dict[int, bool] = {}
        self.has_beaten: dict[int, bool] = {}
        """By broker: whether this incarnation was unfenced. Until then it does not count as alive."""
        self.ran_ms = 0
        self.counted_ms: dict[int, int] = {}
        """By broker: the part of pauses since its last heartbeat that may count, up to one check interval for each."""
        self.made = 0

    @rule(broker_id=st.integers(1, 3))
    def register(self, broker_id: int) -> None:
        self.incarnations += 1
        silent_ms = self.ran_ms - self.last_ms.get(broker_id, 0) + self.counted_ms.get(broker_id, 0)
        outcome = request_registration(self.world, broker_id, self.incarnations.to_bytes(16, "big"))
        if isinstance(outcome, ApiError):
            assert outcome.error is ErrorCode.duplicate_broker_registration
            assert self.has_beaten[broker_id]
            return
        assert not (self.has_beaten.get(broker_id) and silent_ms < SESSION_MS), "a live broker lost its ID"
        self.epochs[broker_id], self.has_beaten[broker_id] = outcome, False
        self.last_ms[broker_id], self.serving[broker_id] = self.ran_ms, False
        self.counted_ms[broker_id] = 0

    @rule(broker_id=st.integers(1, 3), wants_fence=st.booleans())
    def beat(self, broker_id: int, wants_fence: bool) -> None:
        if broker_id in self.epochs:
            result = beat(self.world, broker_id, self.epochs[broker_id], fence=wants_fence)
            assert isinstance(result, HeartbeatResult)
            self.world.settle()
            assert (broker_id in fenced(self.world)) == wants_fence
            self.last_ms[broker_id], self.serving[broker_id] = self.ran_ms, not wants_fence
            self.counted_ms[broker_id], self.has_beaten[broker_id] = 0, True

    @rule(milliseconds=st.integers(1, 4000))
    def run_for(self, milliseconds: int) -> None:
        pass_time(self.world, milliseconds)
        self.ran_ms += milliseconds

    @rule()
    def pause(self) -> None:
        self.world.ports.now_us += 30_000_000
        self.world.settle()
        self.counted_ms = {each: ms + SESSION_MS // CHECKS_PER_SESSION for each, ms in self.counted_ms.items()}

    @rule()
    def fail_over(self) -> None:
        self.world.lose()
        pass_time(self.world, 3000)
        self.world.win()
        self.world.settle()
        # As in Kafka, a new controller gives a session to those that are not fenced.
        self.has_beaten = {each: each not in fenced(self.world) for each in self.has_beaten}
        self.last_ms = dict.fromkeys(self.last_ms, self.ran_ms)
        self.counted_ms = dict.fromkeys(self.counted_ms, 0)

    @rule()
    def create_a_topic_of_many_batches(self) -> None:
        self.made += 1
        self.world.submit(
            lambda: topic_records(f"t{self.made}", topic_id(self.made), 30, 1 + self.made % 3), lambda _: None
        )
        self.world.settle()

    @invariant()
    def sessions_hold(self) -> None:
        last = [note["broker"] for note in self.world.ports.notes_of("broker_fenced")]
        for broker_id, broker in self.world.controller.image.brokers.items():
            silent_ms = self.ran_ms - self.last_ms[broker_id]
            if silent_ms > 2 * SESSION_MS:
                assert broker.fenced, f"broker {broker_id} was silent for {silent_ms} ms; fenced were {last}"
            if self.serving[broker_id] and silent_ms + self.counted_ms[broker_id] < SESSION_MS:
                assert not broker.fenced, f"broker {broker_id} sent a heartbeat {silent_ms} ms ago"
            self.serving[broker_id] = self.serving[broker_id] and not broker.fenced

    @invariant()
    def fenced_brokers_that_fell_silent_lead_nothing(self) -> None:
        image = self.world.controller.image
        for topic in image.topics.values():
            for partition in topic.partitions:
                broker = image.brokers.get(partition.leader)
                if broker is not None and broker.fenced:
                    assert broker.broker_epoch == self.epochs[partition.leader], (
                        "only until a new registration is unfenced"
                    )


Sessions.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
test_sessions = pytest.mark.thorough(Sessions.TestCase)
