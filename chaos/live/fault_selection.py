"""The scenario that a live run plays for a seed. Of alternatives, it omits those that need the simulator."""

from dataclasses import replace

from reports.guarantees import GUARANTEES
from scenarios.derived import drawn
from scenarios.fault_kinds import FAULT_KINDS, SIMULATED_STATES
from scenarios.model import Fault, Range, Scenario
from scenarios.revisions import revision_of


def select_live_faults(scenario: Scenario, seed: int) -> Scenario:
    """Call ``scenarios.derived.drawn`` without the alternatives that need a simulator.

    In the revision ``none`` the faults are injected into fetches without sessions.
    """
    if revision_of(scenario) == "none":
        scenario = without_sessions(scenario)
    kept = tuple(fault for fault in scenario.faults if is_live(fault) or not _has_stand_in(scenario, fault))
    return drawn(replace(scenario, faults=kept), seed)


def is_live(fault: Fault) -> bool:
    return not (FAULT_KINDS[fault.kind].only_simulated or fault.on in SIMULATED_STATES or fault.after)


def _has_stand_in(scenario: Scenario, fault: Fault) -> bool:
    return bool(fault.either) and any(each.either == fault.either and is_live(each) for each in scenario.faults)


def without_sessions(scenario: Scenario) -> Scenario:
    """Return the scenario with the same faults on fetches without a session, and without the guarantees of sessions.

    A follower's fetch always requests a session (scenarios.revisions), and a fetch of the metadata log never does,
    which distinguishes them. A fault that waits for an error which only sessions have need not fire.
    """
    return replace(
        scenario,
        guarantees=tuple(guarantee for guarantee in scenario.guarantees if not GUARANTEES[guarantee].of_sessions),
        faults=tuple(_on_any_fetch(fault) for fault in scenario.faults),
        state=(),
    )


def _on_any_fetch(fault: Fault) -> Fault:
    of_peers = fault.match.role == "peer" or (fault.link is not None and not fault.timed)
    asks_for_one = Range(0, 0) if of_peers and fault.match.session else None
    match = replace(fault.match, session=None, session_epoch=asks_for_one)
    return replace(fault, match=match, optional=fault.optional or bool(fault.match.error))
