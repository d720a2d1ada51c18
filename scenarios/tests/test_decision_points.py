"""Decision points: how comments declare them, and that the broker's comments are right."""

from pathlib import Path

import pytest

from scenarios import loader
from scenarios.clauses import texts
from scenarios.decision_points import (
    Declared,
    Point,
    PointError,
    declared_points,
    place_of,
    points_of,
    reasons_unreached,
)

_SOURCE = """
def f(epoch):
    if epoch == 1:  # Decision epoch-matches
        return 2
"""
_DECLARED: Declared = {"epoch-matches": (("F-6", "F-7"), ("expected", "another"))}


def test_comment_marks_a_declared_point() -> None:
    points = list(points_of(_SOURCE, Path("f.py"), _DECLARED))
    assert points == [Point("epoch-matches", ("F-6", "F-7"), ("expected", "another"), "f.py", 3)]
    assert [points[0].outcome(side) for side in (0, 1)] == ["epoch-matches=expected", "epoch-matches=another"]


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("if a:  # Decision epoch-matches (F-6): a | b", r"f\.py:1: write '# Decision NAME'"),
        ("# Decision", r"f\.py:1: write '# Decision NAME'"),
        ("if a:  # Decision epoch", r"f\.py:1: declare epoch in decisions\.toml"),
    ],
)
def test_comment_that_marks_no_declared_point_is_refused(comment: str, message: str) -> None:
    with pytest.raises(PointError, match=message):
        list(points_of(comment, Path("f.py"), _DECLARED))


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ('["a.py"]\nfull = "F-1: yes | no"', None),
        ('["a.py"]\nfull = "F-1: yes"', "full: write 'CLAUSES: OUTCOME"),
        ('["a.py"]\nfull = "1: yes | no"', "full: write 'CLAUSES: OUTCOME"),
        ('["a.py"]\nfull = "F-1: yes | no"\nempty = "F-1: yes | no"', r"empty is decided nowhere in a\.py"),
        ('["a.py"]\nfull = "F-1: yes | no"\n["b.py"]\nempty = "F-1: yes | no"', r"no file b\.py"),
        ('["b.py"]\nfull = "F-1: yes | no"', "declare full in decisions"),
    ],
)
def test_declarations_and_comments_belong_together(tmp_path: Path, declared: str, message: str | None) -> None:
    (tmp_path / "reference_broker").mkdir()
    (tmp_path / "reference_broker" / "a.py").write_text("if a:  # Decision full\n    ...\n")
    (tmp_path / "reference_broker" / "decisions.toml").write_text(declared)
    if message is None:
        assert [point.name for point in declared_points(tmp_path)] == ["full"]
        return
    with pytest.raises(PointError, match=message):
        declared_points(tmp_path)


def test_each_point_of_the_broker_names_clauses_that_exist() -> None:
    clauses = texts()
    wrong = [
        f"{point.where}: {clause}" for point in declared_points() for clause in point.clauses if clause not in clauses
    ]
    assert not wrong


def test_unknown_outcome_is_refused_with_the_nearest() -> None:
    known = declared_points()[0].outcome(0)
    assert place_of(known) == 0
    with pytest.raises(PointError, match="did you mean"):
        place_of(known[:-1])


def test_each_outcome_that_is_listed_as_unreached_exists_and_has_a_reason() -> None:
    assert all(len(why) > 10 for why in reasons_unreached().values())
    required = {point.partition("@")[0] for scenario in loader.load_all() for point in scenario.points}
    assert not required & set(reasons_unreached()), "a scenario reaches it"


@pytest.mark.parametrize(("why", "message"), [("", "has no reason"), ("x", "there is no outcome")])
def test_reason_for_nothing_is_refused(tmp_path: Path, why: str, message: str) -> None:
    outcome = declared_points()[0].outcome(0)
    (tmp_path / "unreached.toml").write_text(f'[unreached]\n"{outcome}{why}" = "{why}"\n')
    with pytest.raises(PointError, match=message):
        reasons_unreached(tmp_path / "unreached.toml")
