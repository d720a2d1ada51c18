"""The cases of ``crucible probe`` turn red on brokers with a planted defect."""

import pytest

from bench.probe.cases import all_cases
from chaos.mutants.probed import NO_DEFECT_YET, seen_by, unproven
from chaos.mutants.wrong_habits import PLAYED, found


def test_each_broker_of_the_list_has_a_defect_that_exists() -> None:
    assert {found(name).name for name in PLAYED} == PLAYED.keys()


def test_exceptions_name_existing_cases() -> None:
    assert NO_DEFECT_YET.keys() <= {each.id for each in all_cases()}


@pytest.mark.live
def test_session_that_ends_at_a_wrong_epoch_is_seen() -> None:
    seen = seen_by("session_closed_on_wrong_epoch")
    assert {"fetch/session/wrong-epoch", "fetch/session/repeated-epoch"} <= {*seen}
    assert "fetch/session/incremental" not in seen


@pytest.mark.live
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_each_must_turns_red_on_a_broker_with_a_defect() -> None:
    seen = {name: seen_by(name) for name in PLAYED}
    assert {each.id for each in unproven(seen)} == NO_DEFECT_YET.keys()
    assert all(seen.values()), [name for name, cases in seen.items() if not cases]
