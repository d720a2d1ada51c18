"""The table of clauses is made from marks and sources, and every mark names a clause that exists."""

import re
import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner

from crucible_kafka.commands.scenarios import clauses
from scenarios import clauses as clauses_module
from scenarios import ledger
from scenarios.clauses import NOT_BUILT, Clause, all_clauses, texts
from scenarios.conformance import all_behaviours
from scenarios.ledger import MutantSearch, is_stale, proof


@pytest.mark.thorough
def test_every_mark_names_a_known_clause() -> None:
    root = Path(__file__).resolve().parents[2]
    known = {*texts(root), *(behaviour.id for behaviour in all_behaviours(root))}
    marked = {mark for path in root.glob("*/**/tests/test_*.py") for mark in _marks(path.read_text())}
    assert marked <= known, f"unknown clauses: {sorted(marked - known)}"


def test_every_behaviour_of_kafkas_tests_is_shown_by_one_of_ours_or_does_not_apply() -> None:
    behaviours = all_behaviours()
    assert len(behaviours) > 60
    assert [behaviour.id for behaviour in behaviours if behaviour.status == "not proven"] == []
    assert [behaviour.id for behaviour in behaviours if behaviour.unlike and behaviour.tests] == [], (
        "a test shows what does not apply"
    )
    assert all(
        behaviour.text and re.fullmatch(r"[a-z-]+/src/[\w/]+\.(java|scala)", behaviour.path) for behaviour in behaviours
    )
    assert len({behaviour.id for behaviour in behaviours}) == len(behaviours)


def test_behaviours_are_found_by_the_marks_that_name_them(tmp_path: Path) -> None:
    tests = tmp_path / "reference_broker" / "tests"
    tests.mkdir(parents=True)
    (tmp_path / "reference_broker" / "conformance").mkdir()
    (tmp_path / "reference_broker" / "conformance" / "a.toml").write_text(
        '[FetchSessionTest]\npath = "core/Any.scala"\ntestSessionCache = "one"\ntestTwo = "two"\n'
        '[FetchSessionTest.unlike]\ntestThree = "no shards"\n"no quotas" = ["testFour", "testFive"]\n'
    )
    (tmp_path / "reference_broker" / "conformance" / "b.toml").write_text(
        '[AclTest]\npath = "core/Acl.scala"\nunlike = "no ACLs"\n'
    )
    (tests / "test_a.py").write_text(
        '@pytest.mark.clause("F-1", "FetchSessionTest.testSessionCache")\ndef test_one(): ...\n'
    )
    assert [(behaviour.id, behaviour.status, behaviour.tests) for behaviour in all_behaviours(tmp_path)] == [
        ("FetchSessionTest.testSessionCache", "proven", ("reference_broker/tests/test_a.py::test_one",)),
        ("FetchSessionTest.testTwo", "not proven", ()),
        ("FetchSessionTest.testThree", "does not apply", ()),
        ("FetchSessionTest.testFour", "does not apply", ()),
        ("FetchSessionTest.testFive", "does not apply", ()),
        ("AclTest", "does not apply", ()),
    ]


def _marks(source: str) -> set[str]:
    return {each for call in re.findall(r"mark\.clause\(([^)]*)\)", source) for each in re.findall(r'"([^"]+)"', call)}


def _catalogue(root: Path) -> Path:
    """Make a folder for scenario files below ``root``, and return it."""
    subject = root / "scenarios" / "catalogue" / "sessions"
    subject.mkdir(parents=True)
    return subject


def test_code_tests_and_scenarios_are_found_by_their_names(tmp_path: Path) -> None:
    catalogue = _catalogue(tmp_path)
    tests = tmp_path / "reference_broker" / "tests"
    tests.mkdir(parents=True)
    (tmp_path / "reference_broker" / "clauses.toml").write_text('[F]\ntitle = "t"\n1 = "one"\n2 = "two"\n')
    (catalogue / "01-a.toml").write_text('clauses = ["F-1"]\n')
    (tmp_path / "reference_broker" / "a.py").write_text('"""Implements F-1."""\n')
    (tests / "test_a.py").write_text('@pytest.mark.clause("F-1")\ndef test_one(): ...\n')
    one, two = all_clauses(tmp_path)
    assert one.code == ("reference_broker/a.py",)
    assert one.tests == ("reference_broker/tests/test_a.py::test_one",)
    assert one.scenarios == ("01-a",)
    assert one.status == "no mutant"
    assert two.status == "no test"


def test_every_clause_has_a_test_and_a_killed_mutant_or_is_listed_as_open() -> None:
    assert [clause.fault for clause in all_clauses() if clause.fault] == []


BUILT = Clause("F-1", "one", ("a.py",), ("test_a.py::test_one",), ("01-a",), ("lacks_it",), points=("decides",))


@pytest.mark.parametrize(
    ("clause", "fault"),
    [
        (BUILT, ""),
        (replace(BUILT, mutants=(), open="unit tests do"), ""),
        (replace(BUILT, code=(), tests=(), mutants=(), open=NOT_BUILT), ""),
        (replace(BUILT, mutants=()), "F-1 has no mutant"),
        (replace(BUILT, points=()), "F-1 has no decision point"),
        (replace(BUILT, points=(), pointless="a format"), ""),
        (replace(BUILT, pointless="a format"), "F-1 is listed as without points, but decides names it"),
        (replace(BUILT, tests=()), "F-1 has no test"),
        (replace(BUILT, open="unit tests do"), "F-1 is listed as open, but the mutant lacks_it lacks it"),
        (replace(BUILT, mutants=(), tests=(), open=NOT_BUILT), "F-1 is listed as not built, but a.py names it"),
        (replace(BUILT, mutants=(), code=(), open=NOT_BUILT), "F-1 is listed as not built, but test_a.py::test_one"),
    ],
)
def test_command_fails_for_a_clause_without_its_proof(
    clause: Clause, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clauses_module, "all_clauses", lambda: (clause,))
    result = CliRunner().invoke(clauses)
    assert result.exit_code == bool(fault)
    assert fault in result.stderr
    assert bool(result.stderr) is bool(fault)
    assert result.stdout.startswith("F-1   ")


def test_only_known_clauses_have_reasons() -> None:
    with (Path(__file__).resolve().parents[2] / "reference_broker" / "clauses.toml").open("rb") as file:
        tables = tomllib.load(file)
    for table in ("open", "without points"):
        assert set(tables[table]) - {"title"} <= set(texts())


def test_clause_with_points_is_exercised_only_by_scenarios_that_must_reach_them(tmp_path: Path) -> None:
    catalogue = _catalogue(tmp_path)
    (tmp_path / "reference_broker").mkdir()
    (tmp_path / "reference_broker" / "clauses.toml").write_text(
        '[F]\ntitle = "t"\n1 = "one"\n2 = "two"\n["without points"]\n"F-2" = "a format"\n'
    )
    (tmp_path / "reference_broker" / "a.py").write_text("if a: ...  # Decision full\n# Decision fuller\nif b: ...\n")
    (tmp_path / "reference_broker" / "decisions.toml").write_text(
        '["a.py"]\nfull = "F-1: yes | no"\nfuller = "F-1: yes | no"\n'
    )
    for name, points in (("01-a", '["full=no@first"]'), ("02-b", '["other=yes"]'), ("03-c", "[]")):
        (catalogue / f"{name}.toml").write_text(f'clauses = ["F-1", "F-2"]\npoints = {points}\n')
    one, two = all_clauses(tmp_path)
    assert one.points == ("full", "fuller")
    assert one.exercised_by == ("01-a",)
    assert two.points == ()
    assert two.pointless == "a format"
    assert two.exercised_by == ("01-a", "02-b", "03-c")


def test_mutant_counts_once_a_scenario_must_catch_it(tmp_path: Path) -> None:
    catalogue = _catalogue(tmp_path)
    mutants = tmp_path / "chaos" / "mutants"
    mutants.mkdir(parents=True)
    (tmp_path / "reference_broker").mkdir()
    (tmp_path / "reference_broker" / "clauses.toml").write_text(
        '[F]\ntitle = "t"\n1 = "one"\n2 = "two"\n3 = "three"\n4 = "four"\n'
        '[open]\ntitle = "t"\n"F-3" = "nothing to remove"\n"F-4" = "nothing to remove"\n'
        '["without points"]\ntitle = "t"\n"F-1" = "a format"\n'
    )
    (catalogue / "01-a.toml").write_text('clauses = []\nmutants = ["lacking"]\n')
    (mutants / "a.py").write_text(
        '@mutant("a:b")\ndef lacking():\n    """Broken (F-1, F-4)."""\n\n\n'
        '@mutant("a:b")\ndef unused():\n    """Broken (F-2)."""\n\n\n'
        'def helper():\n    """No mutant (F-2)."""\n'
    )
    one, two, three, four = all_clauses(tmp_path)
    assert [each.mutants for each in (one, two, three, four)] == [("lacking",), (), (), ("lacking",)]
    assert [each.status for each in (one, two, three)] == ["no test", "no test", "open"]
    assert "no test" in one.fault
    assert three.fault == ""
    assert four.fault == "F-4 is listed as open, but the mutant lacking lacks it"


TODAY = date(2026, 11, 29)
KILL = MutantSearch("lacks_it", "01-a", "sim", 1, ("lost-write",), day="2026-11-20")


@pytest.mark.parametrize(
    ("searches", "worth"),
    [
        ([], "not played"),
        ([replace(KILL, guarantees=())], "not played"),
        ([KILL], "proven"),
        ([replace(KILL, day="2026-10-29")], "stale"),
        ([replace(KILL, day="2026-10-29"), KILL], "proven"),
        ([replace(KILL, day="")], "stale"),
    ],
)
def test_clause_is_proven_by_a_mutant_that_was_killed_lately(searches: list[MutantSearch], worth: str) -> None:
    assert proof(searches, TODAY) == worth
    assert replace(BUILT, played=worth).status == worth


@pytest.mark.parametrize(("commits", "stale"), [("300", False), ("301", True), ("", False)])
def test_kill_is_stale_after_many_commits_to_its_room(
    commits: str, stale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []

    def git(*words: str) -> str:
        calls.append(words)
        return commits

    monkeypatch.setattr(ledger, "_git", git)
    assert is_stale(replace(KILL, commit="abc", room="reference_broker/log"), TODAY) is stale
    assert calls == [("rev-list", "--count", "abc..HEAD", "--", "reference_broker/log")]


def test_only_tests_of_the_broker_and_its_client_are_its_own() -> None:
    tests = ("reference_broker/log/tests/test_a.py::test_one", "chaos/checks/tests/test_check.py::test_two")
    assert replace(BUILT, tests=tests).own_tests == tests[:1]
