"""Selects the guarantees of a run from its scenario.

It also selects the history tables that its load can write. The ``scenarios`` package does not import the guarantees
(``reports/guarantees.py``). It only reads their names, like those of mutants and presets.
"""

from reports.guarantees import GUARANTEES, SeenFrom, names_on_the_wire, names_seen_from, unknown_among
from reports.standby.expected import SELDOM
from scenarios.decision_points import PointError, place_of
from scenarios.fault_kinds import FAULT_KINDS
from scenarios.fields import ScenarioError
from scenarios.load import Load
from scenarios.model import Scenario
from scenarios.revisions import MARK
from scenarios.vocabulary import REVISIONS

LIES = "response_error"

OF_STORED_EPOCHS = frozenset({"commit-regression"})
"""Guarantees that compare the epoch of a stored offset with the one that a client sent (M-8, M-9)."""

METADATA_EPOCH = "crucible.metadata.epoch"
"""The feature of KIP-232."""

OF_DRAFTS = frozenset({"nonmonotonic-metadata-epoch", "no-fetch-before-epoch", "rewinds"})
"""Guarantees that need metadata epochs, which clients get only with draft versions."""


def checked(scenario: Scenario) -> Scenario:
    """Return the scenario itself. Raise ScenarioError for a guarantee or an outcome in ``points`` that does not
    exist."""
    for name in unknown_among(scenario.guarantees):
        raise ScenarioError(f"{scenario.path}: guarantees has {name!r}; allowed: {', '.join(GUARANTEES)}")
    for outcome, mark, revision in (point.partition(MARK) for point in scenario.points):
        try:
            place_of(outcome)
        except PointError as error:
            raise ScenarioError(f"{scenario.path}: points: {error}") from error
        if mark and revision not in REVISIONS:
            raise ScenarioError(f"{scenario.path}: points has {revision!r}; allowed: {', '.join(REVISIONS)}")
    return scenario


def promised_to_clients(scenario: Scenario) -> tuple[str, ...]:
    """Return those of its guarantees that clients' observations suffice to judge. If the scenario lists none, all
    guarantees that have evidence are judged anyway."""
    seen = names_seen_from(SeenFrom.CLIENTS)
    return tuple(guarantee for guarantee in scenario.guarantees if guarantee in seen)


def promised_of_external(scenario: Scenario) -> tuple[str, ...]:
    """Return those of them that can be judged on an external target, with clients that use no draft."""
    return tuple(each for each in promised_to_clients(scenario) if each not in OF_DRAFTS)


def promised_on_the_wire(scenario: Scenario) -> tuple[str, ...]:
    """Return those of its guarantees that the frames in front of a broker show, and its clients alone do not."""
    seen = names_on_the_wire()
    return tuple(guarantee for guarantee in scenario.guarantees if guarantee in seen)


def is_judged(scenario: Scenario, guarantee: str) -> bool:
    """Return whether a run of the simulator is judged for the guarantee.

    All guarantees are judged, whatever the scenario lists, with three exceptions. If a bit may be flipped in any byte
    of a frame, a frame that can still be decoded has another meaning, which cannot be detected, since frames have no
    checksum. Such a scenario is judged only by the guarantees that it lists, and by those that are ``always`` due:
    values do have a checksum. The same holds if errors are put into responses: clients then treat requests as rejected
    that were carried out. If the metadata epoch is disabled, offsets are stored without it (M-14), so guarantees about
    stored epochs are judged only if they are listed.
    """
    if guarantee in scenario.guarantees or GUARANTEES[guarantee].always:
        return True
    lies = any(
        fault.kind == LIES or (FAULT_KINDS[fault.kind].flips_frame_bit and fault.part == "anywhere")
        for fault in scenario.faults
    )
    switched_off = any(fault.feature == METADATA_EPOCH and fault.level == 0 for fault in scenario.faults)
    return not lies and not (switched_off and guarantee in OF_STORED_EPOCHS)


_GROUP = ("commits", "memberships", "resets", "metadata_epochs")


def tables_left(load: Load) -> frozenset[str]:
    """Return names of SELDOM. A run that writes another table takes longer to judge."""
    parts: tuple[tuple[object, tuple[str, ...]], ...] = (
        (load.admins, ("changes", "metadata_reads")),
        (load.metadata_readers, ("metadata_reads",)),
        (load.groups, _GROUP),
        (any(group.view for group in load.groups), ("views",)),
        (load.mirror, (*_GROUP, "copies", "target_runs")),
        (load.has_transactions, ("transactions",)),
        (load.workers, (*_GROUP, "transforms")),
        (load.janitors, ("described_transactions",)),
        (any(topic.is_compacted for topic in load.topics), ("keyed_writes",)),
        (any(producer.metadata_epoch for producer in load.producers), ("metadata_epochs",)),
        (any(admin.metadata_epoch for admin in load.admins), ("metadata_epochs",)),
    )
    left = frozenset(name for part, names in parts if part for name in names)
    assert left <= SELDOM, f"{left - SELDOM} are no tables that few runs have"
    return left
