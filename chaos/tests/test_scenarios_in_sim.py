"""Every scenario is green in the simulator without its mutants and red with each of them. Most mutants are played at
night.

The tables before the tests are their parameters:

* What is played: ``ALL`` has each scenario in each of its revisions by name, and ``PAIRS`` each of them with each of
  its mutants. ``PLAYED`` marks the pairs that are left to the night. A commit plays one of ``PARTS`` parts of the
  mutants (``_is_due``), each in the scenario and with the seed that kill it fastest (``FASTEST``, from the ledger).
* With which seeds: ``CONTROL_SEEDS`` and ``CLUSTER_SEEDS`` without a mutant. With one, ``FASTEST`` or ``KILLED_FIRST``
  names the seed that is tried first, and ``MUTANT_SEEDS`` follow until one is red.
* What a mutant must violate: at least one guarantee of ``KILLED_BY``, and at most ``OTHERS_BROKEN`` others, unless it
  is one of ``SEEN_BY_MANY``. Pairs in ``REPEATED`` are played twice, with equal results.

A new mutant needs a row in ``KILLED_BY``. The other tables save time, or name exceptions.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from zlib import crc32

import pytest

from chaos.mutants import MutantError, by_name, mutants_of
from chaos.search.many_seeds import search
from chaos.search.shrink import shrink
from chaos.search.sim_command import SimOptions, report, simulate
from chaos.sim.cluster import SimCluster
from chaos.sim.one_seed import play_seed
from chaos.sim.run_folder import JUDGED_HERE
from chaos.sim.world import SimWorld
from reference_broker.wire.apis import ApiKey
from reports.verdict import Outcome
from scenarios import ledger, loader
from scenarios.load import Topic
from scenarios.loader import Scenario
from scenarios.model import Fault, Match, Range
from scenarios.revisions import each_revision

pytestmark = pytest.mark.simulated

ALL = {played.name: played for scenario in loader.load_all() for played in each_revision(scenario)}
PAIRS = [(scenario.name, mutant) for scenario in ALL.values() for mutant in mutants_of(scenario)]
FIRST = {scenario.name: next(iter(mutants_of(scenario)), "") for scenario in ALL.values()}
FASTEST = {each.mutant: each for each in ledger.searches_in(ledger.KEPT["sim"])}
"""The scenario and the seed that kill each mutant fastest."""
SLOW = {"consumer_begins_for_ever", "follower_begins_for_ever"}
"""Mutants that are played at night only, since one play takes half a minute or more."""
PARTS = 48
PART = ledger.turn() % PARTS


def _is_due(name: str, mutant: str) -> bool:
    """Return whether the test of this commit plays the mutant in this scenario."""
    if mutant in SLOW:
        return False
    if mutant not in FASTEST:
        return FIRST[name] == mutant
    return FASTEST[mutant].scenario == name and crc32(mutant.encode()) % PARTS == PART


PLAYED = [
    pytest.param(name, mutant, marks=() if _is_due(name, mutant) else pytest.mark.nightly) for name, mutant in PAIRS
]
"""All mutants of all scenarios take minutes. The test of a commit plays a part of the mutants, each once with the seed
that kills it fastest, and the night plays all of them in all of their scenarios. So all that are due here are due in
the rotation, too: ``rotated(1)``."""
CONTROL_SEEDS = range(1, 3)
CLUSTER_SEEDS = range(1, 2)
"""A cluster takes ten times as long as a single node. The nightly session plays many seeds of each scenario."""
MUTANT_SEEDS = range(1, 21)
POLICY = "crucible.unknown.producer.id.policy"
OTHERS_BROKEN = 3
"""A mutant breaks at most this many guarantees besides its own one. One that breaks everything proves little."""
SEEN_BY_MANY = {
    "incremental_served_without_session": "the response is wrong in its session, its epoch and its partitions",
    "elr_not_kept": "a leader without committed records: they are lost in replicas, in reads, and in what was written",
    "unclean_restart_keeps_elr": "as elr_not_kept",
    "leader_from_outside_the_isr": "as elr_not_kept",
    "high_watermark_at_leaders_end": "records that are not replicated are read, and lost with their leader",
    "joins_behind_high_watermark": "an in-sync replica lacks committed records, and loses them for all if it leads",
    "unclean_restart_stays_in_sync": "as joins_behind_high_watermark",
    "sent_data_moves_cached_offset": "as joins_behind_high_watermark",
    "other_id_starts_empty": "a follower empties its log and is in sync, so it loses what was committed",
    "snapshot_crc_unchecked": "wrong sequences: batches of producers are refused, written twice, or not written",
    "snapshot_without_producers": "as snapshot_crc_unchecked",
    "epoch_not_raised": "two producers write in one epoch: their sequences and transactions mix",
    "last_stable_at_high_watermark": "open transactions are read: too early, perhaps aborted, and out of order",
    "open_transactions_missing_from_snapshot": "as last_stable_at_high_watermark",
    "aborts_acknowledged_unwritten": "a transaction hangs for readers, for administrators and in the state of its ID",
    "aborted_record_survives": "an aborted value stays in replicas and in views of the key, and is read",
    "newest_record_cleaned": "a key's newest value is gone from replicas, from views of the key, and from reads",
    "unsafe_for_ever": "an in-sync follower empties its log whenever the marker moves: committed records are lost",
    "records_forgotten": "a node without any record is wrong in everything that was seen of it",
    "metadata_forgotten": "a node without any metadata is wrong in everything that was seen of it",
    "no_abort": "records of two epochs are one transaction: images have a part of it, and all changes wait",
}
"""Mutants that may break more than ``OTHERS_BROKEN`` other guarantees, and why: their single defect has effects that
several guarantees describe."""
KILLED_FIRST = {
    ("07-leader-moves-and-returns", "leader_epoch_not_checked"): 2,
    ("08-killed-while-downloading", "append_after_torn_tail"): 15,
    ("08-killed-while-downloading", "download_restarts_at_zero"): 10,
    ("10-snapshot-superseded", "position_kept_with_new_id"): 14,
    ("12-snapshot-disk-faults", "deleted_before_log_start_is_durable"): 5,
    ("13-slow-link", "superseded_snapshot_deleted_at_once"): 2,
    ("27-killed-at-epoch@first", "counted_session_ids"): 4,
    ("35-producer-snapshots", "snapshot_crc_unchecked"): 5,
    ("39-coordinator-killed-between-commits", "epoch_not_loaded"): 4,
    ("damaged-segments", "stray_deleted"): 2,
    ("damaged-bytes", "metadata_crc_unchecked"): 2,
    ("min-isr-raised-late", "isr_published_before_min_isr"): 10,
    ("leader-loses-power", "leader_from_outside_the_isr"): 8,
    ("leader-loses-power@first", "leader_from_outside_the_isr"): 8,
    ("44-coordinator-of-transactions-killed", "markers_before_prepare"): 8,
    ("44-coordinator-of-transactions-killed", "transactions_dropped_at_load"): 2,
    ("44-coordinator-of-transactions-killed", "opposite_outcome_after_takeover"): 2,
    ("46-partition-leader-killed-in-transaction", "aborted_index_not_rebuilt"): 2,
    ("46-partition-leader-killed-in-transaction", "open_transactions_missing_from_snapshot"): 2,
    ("48-consume-transform-produce", "transactional_generation_not_checked"): 5,
    ("49-late-marker", "coordinator_epoch_not_checked"): 2,
    ("zombie-unverified", "producer_epoch_not_checked"): 4,
}
"""A seed that has killed the mutant before, where that was not the first one: it is tried first, to save time."""
REPEATED = {
    ("01-lost-response", "change_mark_cleared_when_sent"),
    ("14-controller-killed-in-transaction", "no_abort"),
    ("leader-loses-power", "high_watermark_at_leaders_end"),
    ("38-controller-killed-around-epoch", "epoch_in_memory_only"),
    ("mirror", "accepts_older_metadata"),
}
"""One of each kind of cluster: played twice, it breaks the same."""
KILLED_BY: dict[str, str | tuple[str, ...]] = {
    "records_forgotten": ("lost-write", "inconsistent-offsets"),
    "offsets_forgotten": "commit-regression",
    "transactions_forgotten": "lost-transaction",
    "metadata_forgotten": "lost-metadata",
    "follower_serves_its_log_end": "no-uncommitted-read",
    "slow_followers_stay": "isr-honest",
    "voided_wait_accepted": ("transactions-consistent", "hanging-transaction"),
    "moved_partition_gets_no_marker": ("transactions-consistent", "hanging-transaction"),
    "prefers_a_replica_out_of_sync": "read-replica-eligible",
    "segment_listed_first": "listed-when-stored",
    "marker_not_moved": "tombstones-marked",
    "marker_not_returned": ("deleted-stays-deleted", "materialized-view", "tombstones-marked"),
    "follower_overtakes_marker": "tombstones-marked",
    "consumer_reads_on": "one-bootstrap-per-marker",
    "follower_keeps_its_log": ("deleted-stays-deleted", "tombstones-marked"),
    "consumer_begins_for_ever": "one-bootstrap-per-marker",
    "follower_begins_for_ever": "one-bootstrap-per-marker",
    "consumer_ignores_moved_marker": "one-bootstrap-per-marker",
    "follower_ignores_moved_marker": ("deleted-stays-deleted", "tombstones-marked"),
    "unsafe_for_ever": "one-bootstrap-per-marker",
    "deleted_before_listed": "kept-until-stored",
    "aged_segments_unsynced": "closed-segments-stored",
    "older_upload_counts": "newer-upload-counts",
    "remote_state_not_restored": "duplicate",
    "unsnapshotted_segments_stay": "closed-segments-stored",
    "expiry_resets_on_failover": "forgotten-producer-refused",
    "uploaded_without_snapshot": "listed-when-stored",
    "uploaded_with_empty_snapshot": "uploaded-producers-replayed",
    "only_last_segment_replayed": "uploaded-producers-replayed",
    "older_coordinator_epoch_forgotten": "uploaded-producers-replayed",
    "forgotten_a_millisecond_early": "uploaded-producers-replayed",
    "change_mark_cleared_when_sent": "fetch-gap",
    "epoch_not_advanced_when_response_lost": "session-epoch-order",
    "no_epoch_comparison": "session-epoch-order",
    "session_closed_on_wrong_epoch": "session-lost",
    "cache_keyed_by_client_id": "session-lost",
    "session_id_of_client_id": "session-lost",
    "forgotten_list_ignored": "unrequested-partition",
    "replaced_partitions_kept": "unrequested-partition",
    "least_recently_used_evicted": "eviction-rules",
    "last_use_not_noted": "eviction-rules",
    "session_outlives_its_farewell": "eviction-rules",
    "responses_logged_without_session": "session-lines-exact",
    "session_forgets_its_maker": "session-lines-exact",
    "session_outlives_its_last_partition": "eviction-rules",
    "no_batch_beyond_the_limit": ("no-starvation", "incremental-response-exact"),
    "declined_while_slots_are_free": "eviction-rules",
    "one_session_too_many": "eviction-rules",
    "followers_not_privileged": "eviction-rules",
    "larger_sessions_wait": "eviction-rules",
    "evictions_not_counted": "metrics-exact",
    "session_without_request": "session-lost",
    "draft_errors_outside_drafts": "session-epoch-order",
    "session_kept_after_error": "fetch-gap",
    "flags_before_the_session_id": "draft-layout-exact",
    "drafts_in_the_ranges": "drafts-unnoticed",
    "drafts_not_announced": "drafts-unnoticed",
    "drafts_left_to_upgrade": "drafts-unnoticed",
    "drafts_are_flexible": "draft-layout-exact",
    "incremental_responses_not_marked": "first-revision-responses-exact",
    "errors_without_text": "first-revision-responses-exact",
    "rejected_sessions_called_closed": "first-revision-responses-exact",
    "sequence_number_in_32_bits": "session-epoch-order",
    "retransmission_refuses_the_waiting": "session-epoch-order",
    "leader_epoch_not_checked": "stale-leader-epoch-fenced",
    "returns_every_partition": "incremental-response-exact",
    "offsets_of_moved_records_count_as_sent": "incremental-response-exact",
    "follower_beyond_marker_goes_on": "tombstones-marked",
    "only_records_count_as_changes": "incremental-response-exact",
    "no_rotation": "no-starvation",
    "no_modulo_rotation": "no-starvation",
    "number_not_carried_over": "fetch-gap",
    "incremental_served_without_session": "session-lost",
    "denied_session_invites_incremental_fetches": "incremental-response-exact",
    "sent_data_moves_cached_offset": "no-acked-lost",
    "acknowledged_before_replicated": "no-acked-lost",
    "high_watermark_at_leaders_end": "no-acked-lost",
    "joins_behind_high_watermark": "isr-honest",
    "progress_outlives_restart": "isr-honest",
    "divergence_unseen": "replicas-equal",
    "vote_sent_before_its_name_is_durable": "monotonic-epoch",
    "unclean_restart_stays_in_sync": "replicas-equal",
    "leader_from_outside_the_isr": ("replicas-equal", "isr-honest"),
    "elr_not_kept": "replicas-equal",
    "unclean_restart_keeps_elr": "isr-honest",
    "eligible_outlive_min_isr": "min-isr-kept",
    "broker_sets_its_own_min_isr": "min-isr-kept",
    "clusters_min_isr_removed": "min-isr-kept",
    "high_watermark_below_min_isr": "isr-honest",
    "isr_of_response_applied_at_once": "no-acked-lost",
    "isr_published_before_min_isr": "no-acked-lost",
    "leads_without_directory": "replicas-equal",
    "last_known_leader_never_elected": "replicas-converge",
    "retries_appended_again": "duplicate",
    "unknown_producer_believed": "forgotten-producer-refused",
    "idle_producer_remembered": "forgotten-producer-refused",
    "busy_producer_forgotten": "forgotten-producer-refused",
    "epoch_overflows_to_negative": "session-epoch-order",
    "epoch_wraps_to_zero": "session-epoch-order",
    # A client that comes back to the session of another gets its partitions, or none of its own.
    "counted_session_ids": ("unrequested-partition", "fetch-gap"),
    "negative_idle_time_evicts": "eviction-rules",
    "append_after_torn_tail": "snapshot-transfer-bounded",
    "download_restarts_at_zero": "snapshot-transfer-bounded",
    "blind_append": "snapshot-transfer-bounded",
    "snapshot_served_unread": "snapshot-transfer-bounded",
    "position_kept_with_new_id": "snapshot-transfer-bounded",
    "position_kept_across_leaders": "snapshot-transfer-bounded",
    "rename_before_sync": "quorum-converges",
    "superseded_snapshot_deleted_at_once": "snapshot-transfer-bounded",
    "newest_snapshot_served": ("snapshot-responses-exact", "snapshot-transfer-bounded"),
    "position_ignored_by_leader": "snapshot-transfer-bounded",
    "each_chunk_marked_as_last": "quorum-converges",
    "made_snapshots_not_measured": "snapshot-metrics-exact",
    "loads_not_measured": "snapshot-metrics-exact",
    "size_of_the_first_snapshot_reported": "snapshot-metrics-exact",
    "missing_snapshot_returned_empty": "snapshot-responses-exact",
    "position_outside_returned_empty": "snapshot-responses-exact",
    "any_node_serves_snapshots": "snapshot-responses-exact",
    "snapshot_of_any_topic": "snapshot-responses-exact",
    "no_abort": "one-abort-per-begin",
    "markers_omitted": "torn-metadata",
    "markers_unchecked": "misplaced-markers-refused",
    "acknowledged_at_begin": "lost-metadata",
    "ends_instead_of_abort": ("torn-metadata", "lost-metadata"),
    "apply_as_read": ("torn-metadata", "lost-metadata", "snapshot-equals-replay"),
    "high_watermark_decides_visibility": ("torn-metadata", "lost-metadata", "snapshot-equals-replay"),
    "replay_ignores_markers": "snapshot-equals-replay",
    "snapshot_at_high_watermark": "quorum-converges",
    "no_epoch_check_on_append": "log-matching",
    "writes_leak_into_snapshot": "snapshot-equals-replay",
    "abort_without_bootstrap": "bootstrapped",
    "goes_on_without_bootstrap": "bootstrapped",
    "torn_batch_kept": "leader-completeness",
    "gate_ignored": "markers-gated",
    "accepts_older_metadata": "rewinds",
    "epoch_forgotten_when_off": "switch-respected",
    "epoch_goes_on_when_off": "switch-respected",
    "brokers_updated_one_by_one": "updates-sent-at-once",
    "epoch_not_sent": "one-content-per-epoch",
    "producers_keep_no_epoch": "nonmonotonic-metadata-epoch",
    "older_controller_obeyed": "nonmonotonic-metadata-epoch",
    "older_update_applied": "nonmonotonic-metadata-epoch",
    "commits_without_epoch": "commit-regression",
    "epoch_not_returned": "commit-regression",
    "epoch_outlives_older_commit": "commits-accepted",
    "last_write_wins": "commit-regression",
    "no_wait_after_offset_fetch": "no-fetch-before-epoch",
    "no_wait_before_seek": "no-fetch-before-epoch",
    "epoch_in_memory_only": "nonmonotonic-metadata-epoch",
    "epoch_missing_from_snapshot": "snapshot-equals-replay",
    "epoch_not_loaded": "commit-regression",
    "new_schema_before_switch": "switch-respected",
    "epoch_written_in_transaction": "epoch-gated-by-transaction",
    "generation_not_checked": "commits-fenced",
    "commit_before_replicated": "commit-regression",
    "offsets_not_loaded": "commit-regression",
    "groups_not_loaded": "one-group-leader",
    "generation_not_advanced": "one-group-leader",
    "newest_record_cleaned": "replicas-equal",
    "superseded_record_kept": "replicas-equal",
    "cleaned_above_high_watermark": "replicas-equal",
    "cleaned_above_last_stable_offset": "replicas-equal",
    "aborted_record_survives": "replicas-equal",
    "empty_batches_sent_alone": "no-starvation",
    "marker_removed_at_once": "replicas-equal",
    "log_begins_at_its_end": "lost-write",
    "commits_of_simple_consumers_dropped": "commit-regression",
    "any_damage_cut": "damage-kept",
    "snapshot_crc_unchecked": "producers-replayed",
    "snapshot_without_producers": "forgotten-producer-refused",
    "no_snapshot_at_clean_stop": "producers-kept-at-stop",
    "batches_behind_snapshot_ignored": "producers-replayed",
    "damage_not_reported": ("replicas-converge", "isr-honest"),
    "failed_append_acknowledged": "lost-write",
    "failed_append_leaves_its_epoch": "log-matching",
    "failed_sync_taken_for_done": "inconsistent-offsets",
    "stray_deleted": "damage-kept",
    "other_id_starts_empty": ("inconsistent-offsets", "no-acked-lost", "damage-kept"),
    "batch_crc_unchecked": "corrupt-value",
    "cluster_id_unchecked": "stable-leadership",
    "internal_topics_added": "forged-refused",
    "voter_unchecked": "stable-leadership",
    "broker_epoch_unchecked": ("replicas-converge", "no-false-fencing"),
    "old_registration_believed": "no-false-fencing",
    "epoch_bound_unchecked": "quorum-converges",
    "broker_sessions_by_wall_clock": "no-false-fencing",
    "former_leader_keeps_requests_parked": "responses-after-heal",
    "broker_sessions_five_times_as_long": "no-false-fencing",
    "acknowledgement_waits_beyond_its_timeout": "responses-after-heal",
    "metadata_crc_unchecked": "quorum-converges",
    "deleted_before_log_start_is_durable": "quorum-converges",
    # A transaction that took effect in one partition and not in the other, or in all although its client was refused.
    "markers_before_prepare": ("torn-transaction", "aborted-read"),
    "transactions_dropped_at_load": ("hanging-transaction", "aborted-read"),
    "opposite_outcome_after_takeover": ("torn-transaction", "lost-transaction"),
    "aborted_index_not_rebuilt": "aborted-read",
    "last_stable_at_high_watermark": ("aborted-read", "precommitted-read"),
    "open_transactions_missing_from_snapshot": ("aborted-read", "uploaded-producers-replayed"),
    "offsets_visible_before_commit": "torn-transaction",
    "offsets_kept_after_abort": "torn-transaction",
    "transactional_generation_not_checked": "exactly-once",
    "transactions_not_verified": "hanging-transaction",
    "epoch_not_raised": "lost-transaction",
    "any_timeout_granted": "transactional-ids-kept",
    "timed_out_stays_open": "hanging-transaction",
    "timed_out_not_fenced": ("hanging-transaction", "aborted-read"),
    "idle_ids_never_forgotten": "transactional-ids-kept",
    "ids_forgotten_too_early": "transactional-ids-kept",
    "open_transactions_expire": "hanging-transaction",
    "open_transactions_not_returned": "hanging-found",
    "open_transactions_not_listed": "hanging-found",
    "partitions_not_described": "hanging-found",
    "aborts_acknowledged_unwritten": "hanging-found",
    "recreated_in_another_format": "uploaded-producers-replayed",
    "producer_epoch_not_checked": ("hanging-transaction", "aborted-read"),
    "coordinator_epoch_not_checked": ("torn-transaction", "aborted-read", "precommitted-read"),
}


@pytest.mark.rotated(1)
def test_ledger_lists_only_played_scenarios_and_mutants() -> None:
    assert {(each.scenario, name) for name, each in FASTEST.items()} <= set(PAIRS)
    for name, each in FASTEST.items():
        reasons = KILLED_BY[name]
        assert set((reasons,) if isinstance(reasons, str) else reasons) & set(each.guarantees), name
        assert each.seed >= 0
        assert each.day


@pytest.mark.clause("F-17", "F-18", "F-20", "F-21")
@pytest.mark.rotated(24)
@pytest.mark.parametrize("name", ALL)
def test_each_scenario_passes_without_a_mutant(name: str) -> None:
    alone = ALL[name].cluster.total == 1
    search_result = search(ALL[name], CONTROL_SEEDS if alone else CLUSTER_SEEDS, processes=1)
    assert search_result.outcome is Outcome.PASSED, report(search_result)


@pytest.mark.clause("F-2", "F-3", "F-10", "F-11", "F-13", "F-14", "F-15", "F-18", "F-20", "F-22")
@pytest.mark.clause("M-1", "M-2", "M-3", "M-4", "M-5", "M-6", "M-7", "M-8", "M-9", "M-10", "M-11", "M-13", "M-14")
@pytest.mark.clause("M-15")
@pytest.mark.clause("X-1", "X-2", "X-3", "X-4", "X-5", "X-6", "X-7", "X-8", "X-9", "X-10", "X-12", "X-13", "X-14")
@pytest.mark.clause("G-1", "G-3", "G-4", "G-5", "G-6", "G-7", "G-8", "G-10", "G-11")
@pytest.mark.rotated(1)
@pytest.mark.parametrize(("name", "mutant"), PLAYED)
def test_each_mutant_violates_the_guarantee_that_it_is_listed_with(name: str, mutant: str) -> None:
    fastest = FASTEST.get(mutant)
    first = fastest.seed if fastest and fastest.scenario == name else KILLED_FIRST.get((name, mutant), 1)
    for tries, seed in enumerate((first, *(mutant_seed for mutant_seed in MUTANT_SEEDS if mutant_seed != first)), 1):
        verdict = play_seed(ALL[name], seed, mutant).verdict
        if verdict.outcome is Outcome.INVALID:  # This seed plays another of the scenario's faults.
            assert f"the mutant {mutant} was never called" in verdict.reasons
            continue
        assert verdict.outcome in (Outcome.PASSED, Outcome.FAILED), verdict.reasons
        if verdict.outcome is Outcome.FAILED:
            reasons = KILLED_BY[mutant]
            assert set((reasons,) if isinstance(reasons, str) else reasons) & set(verdict.broken), verdict.broken
            assert len(verdict.broken) <= 1 + OTHERS_BROKEN or mutant in SEEN_BY_MANY, verdict.broken
            assert verdict.repeat_command == f"./crucible sim {name} --seed {seed} --mutant {mutant}"
            target = by_name(mutant).target
            ledger.remember(ledger.ended_search(mutant, target, name, "sim", tries, verdict.broken, seed))
            if (name, mutant) in REPEATED:
                assert play_seed(ALL[name], seed, mutant).verdict.broken == verdict.broken
            return
    pytest.fail(f"{name} did not notice {mutant} in {len(MUTANT_SEEDS)} seeds")


@pytest.mark.clause("P-5", "P-6")
@pytest.mark.rotated(4)
@pytest.mark.parametrize("number", [22, 23, 24, 25])
def test_producers_are_written_once_under_the_other_policy_for_unknown_ones(number: int) -> None:
    """The scenarios have one policy each."""
    (scenario,) = [each for each in ALL.values() if each.number == number and "@" not in each.name]
    config = dict(scenario.cluster.config)
    config[POLICY] = "reject" if config.get(POLICY, "accept") == "accept" else "accept"
    verdict = play_seed(replace(scenario, cluster=replace(scenario.cluster, config=tuple(config.items()))), 1).verdict
    assert verdict.outcome is Outcome.PASSED, (verdict.violations, verdict.reasons)


@pytest.mark.parametrize(
    "limits",
    [(("retention.ms", "1500"), ("retention.bytes", "-1")), (("retention.ms", "-1"), ("retention.bytes", "5000"))],
)
def test_retention_explains_only_what_it_may_have_deleted(limits: tuple[tuple[str, str], ...]) -> None:
    cut = with_retention(limits)
    verdict, world = play_seed(cut, 1)
    assert verdict.outcome is Outcome.PASSED, (verdict.violations, verdict.reasons)
    assert all(row.log_start_offset > 0 for row in world.history.ends)
    lost = play_seed(cut, 1, "log_begins_at_its_end").verdict
    assert ("lost-write" in lost.broken) is (limits[0][1] == "-1")


@pytest.mark.parametrize(("retention_s", "is_lost"), [(1800, False), (7200, True)])
def test_step_of_a_clock_makes_records_so_much_older_to_retention(retention_s: int, is_lost: bool) -> None:
    """The clock goes forth by an hour. Retention of half an hour then deletes what is some seconds old."""
    cut = with_retention((("retention.ms", str(retention_s * 1000)), ("retention.bytes", "-1")))
    forth = Fault("forth", "clock_stepped", "request", match=Match(api=int(ApiKey.PRODUCE)), nth=Range(3, 3), total=1)
    cut = replace(cut, faults=(*cut.faults, replace(forth, step_ms=3_600_000)), needs=(*cut.needs, "clock"))
    verdict, world = play_seed(cut, 1)
    assert verdict.outcome is Outcome.PASSED, (verdict.violations, verdict.reasons)
    assert world.history.clock_steps_us == 3_600_000_000
    assert any(row.log_start_offset > 0 for row in world.history.ends) is not is_lost
    assert ("lost-write" in play_seed(cut, 1, "log_begins_at_its_end").verdict.broken) is is_lost


def with_retention(limits: tuple[tuple[str, str], ...]) -> Scenario:
    scenario = loader.find("comes-back-empty")
    topics = tuple(replace(topic, config=(("segment.bytes", "2000"), *limits)) for topic in scenario.load.topics)
    config = (*scenario.cluster.config, ("log.retention.check.interval.ms", "300"))
    return replace(
        scenario,
        load=replace(scenario.load, topics=topics, groups=scenario.load.groups[:1], transactional=()),
        cluster=replace(scenario.cluster, config=config),
    )


@pytest.mark.rotated(8)
@pytest.mark.parametrize("file", sorted(loader.REGRESSIONS.glob("*.toml")), ids=lambda file: file.stem)
def test_scenario_found_by_search_passes_and_kills_its_mutants(file: Path) -> None:
    scenario, seed = loader.load(file), int(file.stem.rpartition("-")[2])
    assert play_seed(scenario, seed).verdict.outcome is Outcome.PASSED
    for mutant in mutants_of(scenario):
        assert play_seed(scenario, seed, mutant).verdict.outcome is Outcome.FAILED


@pytest.mark.parametrize("file", sorted((loader.FOLDER / "short").glob("*.toml")), ids=lambda file: file.stem)
def test_short_scenarios_are_green_and_red_with_their_mutants(file: Path) -> None:
    scenario = loader.load(file)
    assert play_seed(scenario, 1).verdict.outcome is Outcome.PASSED
    for mutant in mutants_of(scenario):
        assert play_seed(scenario, 1, mutant).verdict.outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda it: replace(it, sim_min_fetches=10_000), "fetches"),
        (lambda it: replace(it, sim_min_acked=10_000), "acknowledged"),
        (lambda it: replace(it, max_schedule_slip_ms=0), "slipped"),
        (lambda it: replace(it, min_rewinds=1), "rewinds"),
        (lambda it: replace(it, faults=(replace(it.faults[0], nth=Range(500, 500)),)), "never fired"),
    ],
)
def test_run_that_shows_nothing_is_invalid(change: Callable[[Scenario], Scenario], reason: str) -> None:
    verdict = play_seed(change(ALL["01-lost-response"]), 1).verdict
    assert verdict.outcome is Outcome.INVALID
    assert any(reason in each for each in verdict.reasons)


@pytest.mark.parametrize("flushed", [True, False])
def test_power_loss_under_load_is_survived(flushed: bool) -> None:
    kill = ALL["kill-under-load"]
    config = (("log.flush.interval.messages", "1"),) if flushed else ()
    lost = replace(kill.faults[0], kind="node_powered_off")
    scenario = replace(kill, faults=(lost,), cluster=replace(kill.cluster, config=config))
    for seed in range(1, 4):
        verdict = play_seed(scenario, seed).verdict
        assert verdict.outcome is Outcome.PASSED, (verdict.violations, verdict.reasons)


def test_load_may_have_topics_of_different_kinds() -> None:
    plain = ALL["plain-load"]
    cold = Topic("cold", 2, config=(("cleanup.policy", "compact"),))
    (readers, *_), (writers, *_) = plain.load.fetchers, plain.load.producers
    load = replace(
        plain.load,
        topics=(*plain.load.topics, cold),
        fetchers=(*plain.load.fetchers, replace(readers, name="cold readers", topic="cold", partitions=2)),
        producers=(*plain.load.producers, replace(writers, name="cold writers", topic="cold")),
    )
    verdict, world = play_seed(replace(plain, load=load), 1)
    assert verdict.outcome is Outcome.PASSED, (verdict.violations, verdict.reasons)
    for kind in ("send", "read"):
        counts = Counter(row.topic for row in world.history.runs if row.kind == kind)
        assert min(counts["hot"], counts["cold"]) > 0
    assert {(row.topic, row.partition) for row in world.history.ends} >= {("cold", 0), ("cold", 1)}


def test_mutant_that_is_never_called_is_invalid() -> None:
    plain = replace(
        ALL["plain-load"], load=replace(ALL["plain-load"].load, sim_seconds=0.3), sim_min_fetches=0, sim_min_acked=0
    )
    verdict = play_seed(plain, 1, "negative_idle_time_evicts").verdict
    assert verdict.outcome is Outcome.INVALID
    assert "never called" in verdict.reasons[-1]


def test_bug_of_ours_is_a_crash_not_a_broken_guarantee(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*_: object) -> None:
        offset = 17
        raise ZeroDivisionError(f"planted at {offset}")

    monkeypatch.setattr("reference_broker.sessions.fetch_session.FetchSession.accept", stumble)
    verdict = play_seed(ALL["plain-load"], 1).verdict
    assert verdict.outcome is Outcome.CRASHED
    assert verdict.outcome.value == 4
    assert "ZeroDivisionError: planted" in verdict.reasons[0]
    assert verdict.reasons[1] == "it worked on node 0 at offset 17"
    assert verdict.show_command == f"./crucible sim plain-load --seed 1 --at {verdict.events} --show 0"
    assert not verdict.red, "it was raised outside the broker's code"


def test_exception_in_the_brokers_code_kills_a_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reference_broker.sessions.fetch_session.FetchSession.accept", "no function")
    verdict = play_seed(ALL["plain-load"], 1).verdict
    assert verdict.outcome is Outcome.CRASHED
    assert verdict.red


def test_search_in_two_processes_finds_the_same_and_says_how_to_repeat_it() -> None:
    scenario = ALL["01-lost-response"]
    seeds, mutant = range(1, 5), "epoch_not_advanced_when_response_lost"
    alone, together = (search(scenario, seeds, processes, mutant) for processes in (1, 2))
    assert alone.verdicts == together.verdicts
    text = report(together)
    assert "seeds/s" in text
    assert f"./crucible sim 01-lost-response --seed 1 --mutant {mutant}" in text


def test_command_gives_exit_codes_and_the_hash_of_a_single_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.search.shrink.shrink", partial(shrink, max_runs=2))
    both, final = (ALL["01-lost-response"], ALL["01-lost-response@first"]), [ALL["01-lost-response"]]
    assert simulate(both, SimOptions(seed=1)) == 0
    assert "trace hash " in capsys.readouterr().out
    assert simulate(final, SimOptions(seed=1, mutant="change_mark_cleared_when_sent", shrinks=True)) == 1
    assert "enough for it" in capsys.readouterr().out
    assert simulate(final, SimOptions(seed=1, mutant="change_mark_cleared_when_sent")) == 1
    assert "enough for it" not in capsys.readouterr().out
    assert simulate(final, SimOptions(mutant="change_mark_cleared_when_sent", processes=1)) == 1
    assert "FAILED, 1 seed," in capsys.readouterr().out, "a mutant is played up to its first red seed"
    assert simulate(final, SimOptions(seed=1, seeds=3, mutant="change_mark_cleared_when_sent")) == 1
    assert "FAILED, 3 seeds," in capsys.readouterr().out
    assert simulate(final, SimOptions(mutant="no_such_mutant")) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert simulate(final, SimOptions(mutant="epoch_wraps_to_zer")) == 2
    assert "there is no mutant 'epoch_wraps_to_zer', did you mean epoch_wraps_to_zero; " in capsys.readouterr().err


def test_control_and_mutants_together(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ledger, "FILE", tmp_path / "runs" / "mutants.jsonl")
    wraps = [ALL["06-epoch-wrap"], ALL["06-epoch-wrap@first"]]
    proof = SimOptions(seeds=2, processes=1, with_mutants=True, junit=tmp_path / "sim.xml", annotates=True)
    assert simulate(wraps, proof) == 0
    out = capsys.readouterr().out
    assert "epoch_wraps_to_zero: killed by seed 1: " in out
    assert "::error" not in out
    suite = ElementTree.parse(tmp_path / "sim.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    assert {"06-epoch-wrap", "06-epoch-wrap with epoch_wraps_to_zero"} <= {each.get("name") for each in suite}
    search = ledger.last()["epoch_wraps_to_zero", "sim"]
    assert str(replace(search, commit="")) == (
        "sim: incremental-response-exact, session-epoch-order after 1 seed of 06-epoch-wrap"
    )
    assert (search.seed, search.room) == (1, "reference_broker/sessions")
    toothless = replace(ALL["plain-load"], mutants=("negative_idle_time_evicts",))
    assert simulate([toothless], replace(proof, seeds=1)) == 1
    out = capsys.readouterr().out
    assert "NOT killed" in out
    name = "plain-load with negative_idle_time_evicts"
    assert out.splitlines()[-1] == f"::error title={name}::none of 1 seeds killed the mutant"
    (failure,) = ElementTree.parse(tmp_path / "sim.xml").getroot().iterfind("testsuite/testcase/failure")
    assert failure.get("message") == "none of 1 seeds killed the mutant"
    assert ledger.last()["negative_idle_time_evicts", "sim"].guarantees == ()


def test_demo_meets_its_states_also_where_the_load_begins_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The intervals of snapshots count from the load."""

    def late(world: SimWorld, *clients: Any) -> None:
        world.agenda.run_until(world.agenda.now_us + 15_000_000)
        load(world, *clients)

    def armed(cluster: SimCluster, load_from_us: int) -> None:
        arm(cluster, load_from_us)
        nodes = [machine.node for machine in cluster.machines if machine.node is not None]
        counted.extend(node.broker.quorum_node.generator._last_us - load_from_us for node in nodes)

    load, arm, counted = SimWorld._load, SimCluster.arm, list[int]()
    monkeypatch.setattr(SimWorld, "_load", late)
    monkeypatch.setattr(SimCluster, "arm", armed)
    verdict = play_seed(ALL["demo"], 1).verdict
    assert (verdict.outcome, verdict.reasons, counted) == (Outcome.PASSED, (), [0, 0, 0])


def test_unknown_mutant_is_an_error() -> None:
    with pytest.raises(MutantError):
        play_seed(ALL["plain-load"], 1, "nobody")


def test_run_can_be_written_out(tmp_path: Path) -> None:
    from reports.manifest import read_manifest

    folder = tmp_path / "run"
    assert simulate([ALL["06-epoch-wrap"]], SimOptions(seed=2, out=folder)) == 0
    manifest = read_manifest(folder)
    assert (manifest.world, manifest.seed, manifest.number) == ("sim", 2, 6)
    assert all(check.holds for check in manifest.checks)
    assert {check.guarantee for check in manifest.checks} == {*JUDGED_HERE, "unrequested-partition"}
    for table in (
        "history/operations",
        "history/runs",
        "history/positions",
        "history/ends",
        "trace/node-0-0",
        "faults",
    ):
        assert list(folder.glob(f"{table}*.parquet")), table


def test_first_seeds_and_repeats_are_listed_only_for_pairs_that_are_played() -> None:
    assert {*KILLED_FIRST, *REPEATED} <= {*PAIRS}
