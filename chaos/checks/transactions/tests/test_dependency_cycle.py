"""The simulator's check of dependency cycles: planted circles, what looks like one, and drawn histories."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.checks.check import Violation
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.planted_histories import history_of
from chaos.checks.transactions.dependency_cycle import DependencyCycle
from reports.tests.history import History
from reports.tests.planted_cycles import PLANTED, closed_at, drawn, planted, serial

RANDOMS = st.integers(0, 2**32).map(Random)


def violations_of(history: History) -> list[Violation]:
    check = DependencyCycle(check_context())
    check.end(history_of(history))
    return check.violations


@pytest.mark.clause("X-3", "X-4", "E-7")
@pytest.mark.parametrize("name", list(PLANTED))
def test_exactly_the_planted_cycle_is_found(name: str) -> None:
    _, circle, at_us = PLANTED[name]
    violations = violations_of(planted(name))
    assert [(violation.explanation.partition(":")[0], violation.at_us) for violation in violations] == (
        [(circle, at_us)] if circle else []
    ), violations
    assert closed_at(planted(name)) == at_us


def test_cycle_is_reported_edge_by_edge() -> None:
    (violation,) = violations_of(planted("sends"))
    assert violation.explanation == (
        "G0-realtime: operation 0 of b began at 20 us, before log-0 offset 2 was written (within), before log-0 offset "
        "7 was written (ww), before operation 0 of a ended at 10 us (within), before operation 0 of b began at 20 us "
        "(realtime)"
    )


@pytest.mark.thorough
@given(RANDOMS)
@settings(max_examples=100, deadline=None)
def test_serial_execution_has_no_cycle(random: Random) -> None:
    assert not violations_of(serial(random))


@given(RANDOMS)
@settings(max_examples=100, deadline=None)
def test_cycles_found_are_those_of_a_brute_force_search(random: Random) -> None:
    history = drawn(random)
    violations = violations_of(history)
    assert (violations[0].at_us if violations else -1) == closed_at(history)


@pytest.mark.thorough
def test_about_half_of_the_drawn_histories_have_cycles() -> None:
    """So that the comparison above means something."""
    red = sum(closed_at(drawn(Random(seed))) >= 0 for seed in range(200))
    assert 40 <= red <= 160


def test_histories_whose_writes_may_be_lost_are_not_judged() -> None:
    rows = history_of(planted("sends"))
    rows.writes_guaranteed = False
    check = DependencyCycle(check_context())
    check.end(rows)
    assert not check.violations
