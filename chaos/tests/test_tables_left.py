"""The judge expects the tables that a load leaves, and hardly any other."""

from dataclasses import replace

import pytest

from chaos.checks.guarantee_selection import tables_left
from chaos.sim.one_seed import play_seed
from reports.columns import ROW_TABLES
from reports.standby.expected import SELDOM
from scenarios.loader import load_all

ALL = {each.name: each for each in load_all()}
IN_EACH_CHANGE = ("01-lost-response", "26-tombstones-missed", "48-consume-transform-produce", "mirror")
MAY_BE_ABSENT = {"memberships", "metadata_epochs", "commits"}
"""What a group leaves depends on its settings: one that keeps views commits nothing, for example."""


def test_producers_that_keep_metadata_epochs_leave_them() -> None:
    load = ALL["19-stale-broker"].load
    alone = replace(load, groups=(), admins=())
    assert any(each.metadata_epoch for each in alone.producers) == ("metadata_epochs" in tables_left(alone))
    kept = replace(alone, producers=tuple(replace(each, metadata_epoch=True) for each in alone.producers))
    assert "metadata_epochs" in tables_left(kept)


@pytest.mark.simulated
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_EACH_CHANGE else pytest.mark.nightly) for name in ALL]
)
def test_run_writes_tables_of_its_load(name: str) -> None:
    _, world = play_seed(ALL[name], seed=7)
    left = {ROW_TABLES[type(row)].name for rows in world.history.tables for row in rows} & SELDOM
    assert left <= tables_left(ALL[name].load)
    assert tables_left(ALL[name].load) - left <= MAY_BE_ABSENT
