"""The active controller: activation, order, transactions, results, the loss of leadership, a disk that fails."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import pytest

from reference_broker.controller import controller_term, record_batches
from reference_broker.controller.write_operations import NOT_CONTROLLER, ApiError, Records
from reference_broker.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataFault,
    MetadataRecord,
    NoOpRecord,
    RemoveTopicRecord,
    encode,
)
from reference_broker.metadata.tests.metadata_world import (
    MetadataWorld,
    started,
    topic_id,
    topic_records,
)
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import ErrorCode

A, B = topic_records("a", topic_id(1)), topic_records("b", topic_id(2))
BIG = topic_records("big", topic_id(3), 40)
Results: TypeAlias = list[tuple[ApiError | None, int]]
SMALL_BATCHES = {"crucible_metadata_batch_max_bytes": "512"}


def submit(
    world: MetadataWorld, records: Sequence[MetadataRecord], results: Results | None = None, **options: Any
) -> Results:
    """Submit a change. Each result is kept with the number of published topics at that time."""
    kept: Results = [] if results is None else results
    world.submit(lambda: records, lambda refusal: kept.append((refusal, len(world.controller.image.topics))), **options)
    return kept


# Becoming active


@pytest.mark.clause(
    "KafkaRaftClientTest.testHandleLeaderChangeFiresAfterListenerReachesEpochStartOffsetOnEmptyLog",
    "KafkaRaftClientTest.testHandleLeaderChangeFiresAfterListenerReachesEpochStartOffset",
    "OffsetControlManagerTest.testActivate",
)
def test_leader_is_active_once_first_record_of_epoch_is_committed_and_loaded() -> None:
    world = MetadataWorld()
    world.log.append([encode(each) for each in A], 0)
    world.win()
    assert submit(world, B) == [(NOT_CONTROLLER, 0)]
    world.commit(2)
    assert not world.controller.is_active
    world.commit(3)
    assert world.controller.is_active
    assert list(world.controller.latest.topics) == ["a"]
    assert world.ports.notes_of("controller_activated") == [{"epoch": 1, "offset": 2}]


@pytest.mark.clause(
    "ActivationRecordsGeneratorTest.testActivationMessageForEmptyLogAtMv3_6",
    "QuorumControllerTest.testInsertBootstrapRecordsToEmptyLog",
    "FeatureControlManagerTest.testMetadataVersion",
)
@pytest.mark.parametrize(("version", "kinds"), [("12", ["leader", "1"]), ("13", ["leader", "begin", "1", "end"])])
def test_bootstrap_records_are_transaction_if_metadata_version_allows(version: str, kinds: list[str]) -> None:
    world = started(crucible_bootstrap_metadata_version=version)
    assert world.kinds() == kinds
    assert world.controller.image.features == {"metadata.version": int(version)}
    world.lose()
    world.win()
    world.settle()
    assert world.kinds() == [*kinds, "leader"]


@pytest.mark.clause(
    "ActivationRecordsGeneratorTest.testActivationMessageForEmptyLogAtMv3_6WithTransaction",
    "QuorumControllerTest.testActivationRecordsPartialBootstrap",
)
@pytest.mark.clause("T-7")
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_unfinished_bootstrap_is_aborted_and_repeated_once(kept: int) -> None:
    """Leadership ends after ``kept`` batches of Begin, records, End: only a whole bootstrap is not repeated."""
    world = MetadataWorld()
    world.win()
    world.commit()
    assert world.kinds() == ["leader", "begin", "4", "end"]
    world.high_watermark = (2, 6, 7)[kept - 1]
    world.lose()
    world.cut()
    world.commit()
    world.win()
    world.settle()
    again = [] if kept == 3 else ["abort", "begin", "4", "end"]
    assert world.kinds() == [*["leader", "begin", "4", "end"][: 1 + kept], "leader", *again]
    assert world.controller.image.features == {
        "metadata.version": 27,
        "eligible.leader.replicas.version": 1,
        "transaction.version": 2,
    }
    records = [record for batch in world.log.content for record in batch.records]
    levels = [record for record in records if isinstance(record, FeatureLevelRecord)]
    assert len(levels) == (3 if kept in (1, 3) else 6)


@pytest.mark.clause("OffsetControlManagerTest.testReplayTransaction")
@pytest.mark.clause("T-7", "T-10")
def test_leadership_lost_within_transaction_keeps_all_or_nothing() -> None:
    batches = 0
    for cut in range(1, 40):
        world = started(**SMALL_BATCHES)
        first = world.log.end.offset
        results = submit(world, BIG)
        world.ports.run()
        transaction = [batch for batch in world.log.content if batch.provenance.offset >= first]
        batches = len(transaction)
        if cut > batches:
            break
        world.high_watermark = transaction[cut - 1].provenance.offset + 1
        world.loader.catch_up(world.high_watermark)
        world.lose()
        world.cut()
        is_whole = cut == batches
        assert results == ([(None, 1)] if is_whole else [(NOT_CONTROLLER, 0)])
        _elected_again(world, is_whole)
        results = submit(world, [] if "big" in world.controller.latest.topics else BIG)
        assert results == [] or results == [(None, 1)]
        world.settle()
        assert len(world.controller.image.topics["big"].partitions) == 40
        markers = [kind for kind in world.kinds() if kind in ("begin", "end", "abort")]
        assert markers.count("begin") == markers.count("end") + markers.count("abort")
    assert batches > 6


def _elected_again(world: MetadataWorld, is_whole: bool) -> None:
    world.win()
    assert not world.controller.is_active
    world.commit()
    assert ("big" in world.controller.latest.topics) == is_whole
    after = world.log.content[-1].records
    assert not is_whole or after == ()
    assert is_whole or isinstance(after[0], AbortTransactionRecord)
    assert not world.loader.image.topics or is_whole


@pytest.mark.clause("FeaturesDeltaTest.testReplayWithUnsupportedFeatureLevel", "FeatureControlManagerTest.testReplay")
@pytest.mark.clause("M-14")
@pytest.mark.parametrize(
    ("feature", "level"), [("crucible.metadata.epoch", 1), ("metadata.version", 28), ("group.version", 2)]
)
def test_unknown_feature_level_raises(feature: str, level: int) -> None:
    """Otherwise the active controller would not act on a feature that all others use: no broker would be sent an
    epoch."""
    world = MetadataWorld(crucible_metadata_epoch_enable="false")
    world.log.append([encode(FeatureLevelRecord(name="metadata.version", feature_level=27))], 0)
    world.log.append([encode(FeatureLevelRecord(name=feature, feature_level=level))], 0)
    world.win()
    with pytest.raises(MetadataFault, match=f"does not know level {level} of {feature}"):
        world.commit()


def test_open_transaction_below_its_metadata_version_raises() -> None:
    world = MetadataWorld()
    world.log.append([encode(FeatureLevelRecord(name="metadata.version", feature_level=12))], 0)
    world.log.append([encode(BeginTransactionRecord())], 0)
    world.win()
    with pytest.raises(MetadataFault, match="does not allow"):
        world.commit()


# Changes


@pytest.mark.clause(
    "OffsetControlManagerTest.testHandleCommitBatch", "QuorumControllerTest.testDelayedConfigurationOperations"
)
def test_changes_complete_in_order_once_committed_and_published() -> None:
    world = started()
    results = submit(world, A)
    submit(world, B, results)
    submit(world, [], results)
    world.ports.run()
    assert (results, list(world.controller.image.topics)) == ([], [])
    assert list(world.controller.latest.topics) == ["a", "b"]
    world.commit(world.log.end.offset - 2)
    assert results == [(None, 1)]
    world.commit()
    assert results == [(None, 1), (None, 2), (None, 2)]


@pytest.mark.clause("QuorumControllerTest.testEarlyControllerResults")
def test_change_without_records_completes_at_once_if_none_pending() -> None:
    world = started()
    assert submit(world, []) == [(None, 0)]


@pytest.mark.clause("OffsetControlManagerTest.testHandleScheduleAtomicAppend")
def test_plan_runs_in_turn_and_sees_earlier_changes() -> None:
    world = started(**SMALL_BATCHES)
    submit(world, BIG)
    seen: list[list[str]] = []

    def plan() -> tuple[MetadataRecord, ...]:
        seen.append(list(world.controller.latest.topics))
        return ()

    world.submit(plan, lambda _: None)
    assert seen == []
    world.ports.run()
    assert seen == [["big"]]


@pytest.mark.clause("QuorumControllerTest.testAppendRecords")
@pytest.mark.clause("T-4", "T-5", "T-6")
def test_large_change_is_one_transaction_with_one_batch_per_event() -> None:
    world = started(**SMALL_BATCHES)
    before = len(world.log.content)
    submit(world, BIG, name="create topics")
    submit(world, A)
    world.ports.run()
    kinds = world.kinds()[before:]
    data = [int(kind) for kind in kinds[1:-2]]
    assert kinds[0] == "begin"
    assert kinds[-2:] == ["end", "2"]
    assert sum(data) == 41
    assert world.log.content[before].records == (BeginTransactionRecord(name="create topics"),)
    assert world.ports.events >= len(kinds) - 2
    world.commit()
    assert list(world.controller.image.topics) == ["big", "a"]
    appended = [note for note in world.ports.notes_of("metadata_appended") if note["of"] == len(data)]
    assert [each["kind"] for each in appended] == ["begin", *["batch"] * len(data), "end"]
    committed = [note for note in world.ports.notes_of("metadata_committed") if note["of"] == len(data)]
    assert [each["number"] for each in committed] == [0, *range(1, len(data) + 1), len(data)]


@pytest.mark.clause("T-6")
def test_change_with_more_records_than_kafka_allows_is_accepted() -> None:
    world = started()
    records = [ConfigRecord(resource_type=2, resource_name="x", name=f"k{n}", value="v") for n in range(10_001)]
    results = submit(world, records)
    world.settle()
    assert results == [(None, 0)]
    assert len(world.controller.image.topic_configs("x")) == 10_001


@pytest.mark.clause("QuorumControllerTest.testAppendRecordsAtomically")
@pytest.mark.clause("T-2")
def test_large_change_before_metadata_transactions_is_rejected() -> None:
    world = started(crucible_bootstrap_metadata_version="12", **SMALL_BATCHES)
    end = world.log.end
    ((refusal, _),) = submit(world, BIG) or _settled(world, submit(world, BIG))
    assert refusal is not None
    assert refusal.error is ErrorCode.policy_violation
    assert "excessively large" in refusal.message
    assert (world.log.end, dict(world.controller.latest.topics)) == (end, {})
    raised = [FeatureLevelRecord(name="metadata.version", feature_level=13)]
    submit(world, raised)
    results = submit(world, BIG)
    world.settle()
    assert results == [(None, 1)]


def _settled(world: MetadataWorld, results: Results) -> Results:
    world.settle()
    return results[:1]


def test_nonatomic_change_before_metadata_transactions_uses_plain_batches() -> None:
    world = started(crucible_bootstrap_metadata_version="12", **SMALL_BATCHES)
    results = submit(world, BIG, atomic=False)
    world.settle()
    assert results == [(None, 1)]
    assert not {"begin", "end"} & set(world.kinds())
    assert world.controller.latest.topics == world.controller.image.topics


def test_changes_beyond_record_or_size_limits_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "MAX_RECORDS_PER_OPERATION", 50)
    world = started()
    end = world.log.end
    results = submit(world, [NoOpRecord()] * 51)
    submit(world, [ConfigRecord(resource_type=2, resource_name="x", name="k", value="v" * 1_100_000)], results)
    world.settle()
    assert [refusal and refusal.error for refusal, _ in results] == [ErrorCode.policy_violation] * 2
    assert world.log.end == end


def test_record_larger_than_batch_limit_is_own_batch() -> None:
    world = started()
    records = [ConfigRecord(resource_type=2, resource_name="x", name=name, value="v" * 9000) for name in "abc"]
    submit(world, records)
    world.settle()
    assert world.kinds()[-5:] == ["begin", "1", "1", "1", "end"]


def test_other_work_runs_between_slices_of_long_plans_and_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_term, "PLANNED_UNITS_PER_SLICE", 20)
    world = started()
    events = world.ports.events
    done: list[ApiError | None] = []
    term = world.controller.activation.term
    assert term is not None

    def planning() -> Sliced[Records]:
        for _ in range(10):
            if term.budget.spend(20):
                yield
        return BIG

    world.submit(planning, done.append)
    world.ports.run()
    assert world.ports.events - events >= 10 + 2 * len(BIG) // 20
    world.settle()
    assert done == [None]


@pytest.mark.clause("QuorumControllerTest.testFatalMetadataReplayErrorOnActive")
def test_inconsistent_records_raise_before_append() -> None:
    world = started()
    end = world.log.end
    with pytest.raises(MetadataFault, match="no topic with ID"):
        submit(world, [RemoveTopicRecord(topic_id=topic_id(9))])
    assert world.log.end == end


def test_completion_callback_may_submit_next_change() -> None:
    world = started()
    results: Results = []

    def completed(_refusal: ApiError | None) -> None:
        submit(world, B, results)

    world.submit(lambda: A, completed)
    world.settle()
    assert results == [(None, 2)]


# Losing leadership


@pytest.mark.clause("OffsetControlManagerTest.testActivateAndDeactivate")
@pytest.mark.clause("T-10")
def test_lost_leadership_fails_pending_changes_with_not_controller() -> None:
    world = started(**SMALL_BATCHES)
    results = submit(world, A)
    submit(world, BIG, results)
    submit(world, B, results)
    world.lose()
    assert results == [(NOT_CONTROLLER, 0)] * 3
    end = world.log.end
    world.ports.run()
    assert world.log.end == end
    assert submit(world, A) == [(NOT_CONTROLLER, 0)]
    with pytest.raises(AssertionError, match="only the active controller"):
        _ = world.controller.latest


@pytest.mark.clause("T-10")
def test_append_failing_for_lost_leadership_stops_all_writes() -> None:
    world = started(**SMALL_BATCHES)
    results = submit(world, BIG)
    submit(world, A, results)
    world.ports.step()
    world.quorum.is_leader = False
    end = world.log.end
    world.ports.run()
    assert results == [(NOT_CONTROLLER, 0)] * 2
    assert (world.log.end, world.controller.is_active) == (end, False)


def test_election_of_earlier_epoch_is_ignored() -> None:
    world = MetadataWorld()
    world.win()
    world.controller.activation.leadership_lost(1)
    world.commit()
    assert not world.controller.is_active


# A disk that fails


def test_disk_error_fails_change_and_next_one_succeeds() -> None:
    world = started(**SMALL_BATCHES)
    world.quorum.failing = 2
    results = submit(world, A)
    submit(world, BIG, results)
    world.ports.run()
    assert [refusal and refusal.error for refusal, _ in results] == [ErrorCode.kafka_storage_error] * 2
    assert not world.controller.latest.topics
    results = submit(world, A)
    world.settle()
    assert (results, world.kinds()[-1]) == ([(None, 1)], "2")


def test_disk_error_within_transaction_aborts_it() -> None:
    world = started(**SMALL_BATCHES)
    world.quorum.failing, world.quorum.fail_in = 1, 3
    results = submit(world, BIG)
    submit(world, A, results)
    world.settle()
    assert [refusal and refusal.error for refusal, _ in results] == [ErrorCode.kafka_storage_error, None]
    assert world.kinds()[-5:-3] == ["begin", world.kinds()[-4]]
    assert world.kinds()[-2:] == ["abort", "2"]
    assert list(world.controller.image.topics) == ["a"]


@pytest.mark.parametrize("refused", [2, 3], ids=["the abort", "the next leader's abort, too"])
def test_controller_resigns_if_abort_cannot_be_written(
    refused: int,
) -> None:
    world = started(**SMALL_BATCHES)
    world.quorum.failing, world.quorum.fail_in = refused, 3
    results = submit(world, BIG)
    submit(world, A, results)
    world.ports.run()
    assert [refusal and refusal.error for refusal, _ in results] == [
        ErrorCode.kafka_storage_error,
        ErrorCode.not_controller,
    ]
    for terms in range(1, refused):
        assert (len(world.quorum.resigned), world.controller.is_active) == (terms, False)
        assert "no space left" in world.quorum.resigned[-1]
        assert world.kinds()[-1] not in ("end", "abort")
        world.win()
        world.settle()
    assert world.kinds()[-1] == "abort"
    assert submit(world, A) == []
    world.settle()
    assert list(world.controller.image.topics) == ["a"]


@pytest.mark.clause("T-7")
@pytest.mark.parametrize(("succeeds", "version"), [(0, 27), (1, 27), (2, 27), (0, 12)])
def test_failed_bootstrap_ends_term_and_next_one_bootstraps(succeeds: int, version: int) -> None:
    """A controller that continued would create topics in a cluster without a metadata.version."""
    world = MetadataWorld(crucible_bootstrap_metadata_version=str(version))
    world.quorum.failing, world.quorum.fail_in = 1, succeeds
    world.win()
    world.commit()
    results: list[tuple[ApiError | None, int]] = []
    if world.controller.is_active:
        submit(world, A, results)
    world.settle()
    assert (len(world.quorum.resigned), world.controller.is_active) == (1, False)
    assert "no space left" in world.quorum.resigned[0]
    assert [refusal for refusal, _ in results] in ([], [NOT_CONTROLLER])
    assert (dict(world.loader.image.features), list(world.loader.image.topics)) == ({}, [])
    world.win()
    world.settle()
    assert (world.controller.image.features["metadata.version"], len(world.quorum.resigned)) == (version, 1)
    assert submit(world, A) == []
    world.settle()
    assert list(world.controller.image.topics) == ["a"]
