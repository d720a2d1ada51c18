"""All mutants, and the scenarios that kill each. It also lists those that real processes cannot kill."""

from collections.abc import Mapping

from chaos.mutants import (
    client_transactions,
    compaction,
    disks,
    drafts,
    fetch_sessions,
    groups,
    metadata_epochs,
    metadata_transactions,
    node_requests,
    producers,
    quorum,
    replication,
    rules,
    snapshots,
    tiering,
    unplanned,
)
from chaos.mutants.mutant import Mutant, MutantError
from chaos.mutants.unplanned import second
from scenarios import loader
from scenarios.fields import did_you_mean
from scenarios.ledger import MutantSearch
from scenarios.model import Scenario

FILES = (
    *(fetch_sessions, snapshots, metadata_transactions, quorum),
    *(replication, metadata_epochs, groups, compaction, disks),
    *(node_requests, producers, drafts, client_transactions, tiering),
)


def all_mutants() -> tuple[Mutant, ...]:
    """Return every mutant, in the order of FILES and of the definitions in each file. A partner is not listed
    separately."""
    found = [each for file in FILES for each in vars(file).values() if isinstance(each, Mutant)]
    partners = [each.partner.name for each in found if each.partner is not None]
    return tuple(each for each in found if each.name not in partners)


def unplanned_mutants() -> tuple[Mutant, ...]:
    """Return the mutants of both sets that no scenario names, in the order of the files and of the definitions in each
    file. They are not in ``all_mutants``, since nothing is proven by them: they measure how many defects the simulator
    kills."""
    first = (each for file in unplanned.FILES for each in vars(file).values() if isinstance(each, Mutant))
    return (*first, *second_unplanned_mutants())


def second_unplanned_mutants() -> tuple[Mutant, ...]:
    """Return the second set of the mutants that no scenario names, all of which were chosen before any was played."""
    return tuple(each for file in second.FILES for each in vars(file).values() if isinstance(each, Mutant))


def rule_mutants() -> tuple[Mutant, ...]:
    """Return the mutants that no scenario names and that were written together with the rule that kills each."""
    return tuple(each for each in vars(rules).values() if isinstance(each, Mutant))


def by_name(name: str) -> Mutant:
    """Return the mutant, planned or not. Raise MutantError, which suggests the nearest name."""
    mutants = {mutant.name: mutant for mutant in (*all_mutants(), *unplanned_mutants(), *rule_mutants())}
    if name not in mutants:
        raise MutantError(f"there is no mutant {name!r}{did_you_mean(name, mutants)}; ./crucible mutants lists all")
    return mutants[name]


def mutants_of(scenario: Scenario) -> tuple[str, ...]:
    """Return the names of the mutants that must fail the scenario. A mutant counts if at least one of the scenario's
    revisions has its mechanism."""
    return tuple(
        name for name in scenario.mutants if any(revision in by_name(name).revisions for revision in scenario.revisions)
    )


def table() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return one row for each mutant: its name, then the numbers (or names) of the scenarios that kill it."""
    scenarios = loader.load_all()
    return tuple(
        (mutant.name, tuple(str(found.number or found.name) for found in scenarios if mutant.name in found.mutants))
        for mutant in all_mutants()
    )


_POWER = "only a power loss shows it, and in a live world the kernel keeps what a killed process wrote"

SIMULATED_ONLY: Mapping[str, str] = {
    "vote_sent_before_its_name_is_durable": f"{_POWER}, names of files too",
    "high_watermark_at_leaders_end": f"{_POWER}: what followers lack is lost only if the leader's copy is",
    "joins_behind_high_watermark": f"{_POWER}: a replica that lacks something is missed only if the others lose it",
    "progress_outlives_restart": f"{_POWER}: a follower that was killed still has all that it had acknowledged",
    "divergence_unseen": f"{_POWER}: the logs of replicas that were killed do not part below what all of them hold",
    "unclean_restart_stays_in_sync": f"{_POWER}: a replica that was killed comes back with all that it had",
    "leader_from_outside_the_isr": f"{_POWER}: the replica outside must lack what the others then lose",
    "rename_before_sync": f"{_POWER}: what was not synced is still read back under the snapshot's name",
    "deleted_before_log_start_is_durable": f"{_POWER}: files that a killed process deleted do not come back",
    "acknowledgement_waits_beyond_its_timeout": f"{_POWER}, and its scenario needs that; no live check measures delays",
    "failed_sync_taken_for_done": f"{_POWER}: what a failed sync left unsynced is still read back",
}
"""Mutants that real processes cannot show, each with the physical reason."""

FIRST_SEEDS: Mapping[str, int] = {
    "abort_without_bootstrap": 6,
    "aborted_index_not_rebuilt": 3,
    "append_after_torn_tail": 14,
    "download_restarts_at_zero": 8,
    "markers_before_prepare": 3,
    "opposite_outcome_after_takeover": 3,
    "producer_epoch_not_checked": 2,
    "stray_deleted": 4,
}
"""The first seed of a live search for a mutant, if not 1: a seed whose fault fires where the mutant has an effect."""

_OVERTAKEN = (
    "a replica that comes back follows first, and the next batches of its producers put right what it knows of them; "
    "the checks that see it before that look into nodes, which only the simulator can"
)

_ALL_BATCHES = (
    "clients read nothing wrong, since a retry comes before its producer is forgotten; the check that sees it must "
    "know all batches of a partition, on each node and over restarts, and runs only in the simulator"
)

NOT_SEEN: Mapping[str, str] = {
    "batches_behind_snapshot_ignored": _OVERTAKEN,
    "busy_producer_forgotten": _ALL_BATCHES,
    "idle_producer_remembered": _ALL_BATCHES,
    "snapshot_crc_unchecked": _OVERTAKEN,
    "snapshot_without_producers": _OVERTAKEN,
    "unknown_producer_believed": _ALL_BATCHES,
}
"""Mutants that real processes could show, but that no attempt has shown, each with the reason."""


def live_standing(mutant: str, live: MutantSearch | None) -> str:
    """Return one line about the mutant's results with real processes. ``live`` is the last search for it there."""
    if mutant in SIMULATED_ONLY:
        return f"live: cannot show it: {SIMULATED_ONLY[mutant]}"
    if live is None:
        return "live: not shown yet"
    return f"{live}: {NOT_SEEN[mutant]}" if mutant in NOT_SEEN and not live.guarantees else str(live)
