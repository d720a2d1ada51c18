"""Decision points: how comments declare them, and that the broker's comments are right."""

from pathlib import Path

import pytest

from scenarios import loader
from scenarios.clauses import texts
from scenarios.decision_points import Point, PointError, declared_points, place_of, points_of, reasons_unreached

_SOURCE = """
def f(epoch):
    # Decision epoch-matches (F-6, F-7): expected | another
    if epoch == 1:
        return 2
"""


def test_comment_declares_a_point() -> None:
    points = list(points_of(_SOURCE, Path("f.py")))
    assert points == [Point("epoch-matches", ("F-6", "F-7"), ("expected", "another"), "f.py", 3)]
    assert [points[0].outcome(side) for side in (0, 1)] == ["epoch-matches=expected", "epoch-matches=another"]


@pytest.mark.parametrize(
    "comment", ["# Decision epoch: a | b", "# Decision epoch (F-6): a", "# Decision epoch (6): a | b", "# Decision"]
)
def test_comment_that_declares_half_a_point_is_refused(comment: str) -> None:
    with pytest.raises(PointError, match=r"f\.py:1: write '# Decision NAME"):
        list(points_of(comment, Path("f.py")))


def test_each_point_of_the_broker_names_clauses_that_exist() -> None:
    clauses = texts()
    wrong = [f"{point.where}: {each}" for point in declared_points() for each in point.clauses if each not in clauses]
    assert not wrong


def test_unknown_outcome_is_refused_with_the_nearest() -> None:
    known = declared_points()[0].outcome(0)
    assert place_of(known) == 0
    with pytest.raises(PointError, match="did you mean"):
        place_of(known[:-1])


def test_each_outcome_that_is_listed_as_unreached_exists_and_has_a_reason() -> None:
    assert all(len(why) > 10 for why in reasons_unreached().values())
    required = {each.partition("@")[0] for scenario in loader.load_all() for each in scenario.points}
    assert not required & set(reasons_unreached()), "a scenario reaches it"


@pytest.mark.parametrize(("why", "message"), [("", "has no reason"), ("x", "there is no outcome")])
def test_reason_for_nothing_is_refused(tmp_path: Path, why: str, message: str) -> None:
    outcome = declared_points()[0].outcome(0)
    (tmp_path / "unreached.toml").write_text(f'[unreached]\n"{outcome}{why}" = "{why}"\n')
    with pytest.raises(PointError, match=message):
        reasons_unreached(tmp_path / "unreached.toml")
