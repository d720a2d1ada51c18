"""Derive the scenario in one revision of fetch sessions. Load and faults stay the same."""

from dataclasses import replace

from scenarios.fields import ScenarioError
from scenarios.load import Load
from scenarios.model import Scenario
from scenarios.vocabulary import FETCHER_REVISIONS, REVISIONS

FOLLOWERS_REVISION = "fetch.session.revision"
"""The broker's setting for the revision that its followers speak."""
SLOTS = "max.incremental.fetch.session.cache.slots"
"""The broker's setting for cache slots. With 0 nobody gets a session, and each fetch of a follower is a full one."""
MARK = "@"


def in_revision(scenario: Scenario, revision: str) -> Scenario:
    """Return the scenario as it is played in ``revision``, which fetchers and followers speak.

    The name ends in ``@first`` or ``@none``; nothing is added for the final revision. With ``none`` nobody has a
    session: fetchers request none, and followers get none. The revision need not be among the scenario's own ones.
    Raise ScenarioError for an unknown revision.
    """
    if revision not in FETCHER_REVISIONS:
        raise ScenarioError(f"there is no revision {revision!r}; there are: {', '.join(FETCHER_REVISIONS)}")
    settings = dict(scenario.cluster.config)
    settings.pop(FOLLOWERS_REVISION, None)
    if revision == "first":
        settings[FOLLOWERS_REVISION] = revision
    elif revision not in REVISIONS:
        settings[SLOTS] = "0"
    needs = scenario.needs if revision != "first" else tuple(dict.fromkeys((*scenario.needs, "drafts")))
    return replace(
        scenario,
        name=marked(scenario.name.partition(MARK)[0], revision),
        needs=needs,
        cluster=replace(scenario.cluster, config=tuple(sorted(settings.items()))),
        load=_spoken(scenario.load, revision),
        revisions=(revision,) if revision in REVISIONS else scenario.revisions[:1],
    )


def each_revision(scenario: Scenario, only: str = "") -> tuple[Scenario, ...]:
    """Return the scenario in each of its revisions, the final one first, or in ``only`` alone if that is given.

    A scenario that is already in one revision stays as it is.
    """
    if only:
        return (in_revision(scenario, only),)
    if MARK in scenario.name:
        return (scenario,)
    return tuple(in_revision(scenario, revision) for revision in scenario.revisions)


def revision_of(scenario: Scenario) -> str:
    """Return the revision in which a scenario that ``in_revision`` made is played."""
    return scenario.name.partition(MARK)[2] or "final"


def own_points(scenario: Scenario) -> tuple[str, ...]:
    """Return the outcomes that a run must reach: those of every revision, and of the scenario's own one."""
    split = [point.partition(MARK) for point in scenario.points]
    return tuple(outcome for outcome, mark, revision in split if not mark or revision == revision_of(scenario))


def marked(name: str, revision: str) -> str:
    """Return the name of a scenario in a revision."""
    return name if revision == "final" else f"{name}{MARK}{revision}"


def _spoken(load: Load, revision: str) -> Load:
    return replace(load, fetchers=tuple(replace(group, revision=revision) for group in load.fetchers))
