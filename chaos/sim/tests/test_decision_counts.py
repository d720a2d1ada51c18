"""Counting the outcomes of decision points."""

import ast
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from chaos.sim.decision_counts import DECIDES, REACHES, Recorder, counted, watch
from chaos.sim.one_seed import play_seed
from reports.verdict import Outcome
from scenarios import loader
from scenarios.decision_points import Declared, PointError, declared_points, outcome_names, points_of

_DECLARED: Declared = {"p": (("F-6",), ("a", "b"))}
_BODIES = {
    "if": "if x:  # Decision p\n        return 'yes'\n    return 'no'",
    "return": "return not x",
    "assigned": "y = x > 0\n    return y",
    "conditional": "return (\n        1 if x else 2)",
    "while": "while x:\n        x = 0\n    return x",
    "try": "try:\n        y = 1 / (1 - x)\n    except ZeroDivisionError:\n        y = 0\n    return y",
    "comprehension": "return [each\n        for each in (x,) if each]",
}
_ELIF = "if x < 0:\n        return 0\n    # Decision p\n    elif x:\n        return 1\n    return 2"


def _counts(body: str, *values: int) -> tuple[int, ...]:
    mark = "" if "# Decision" in body else "    # Decision p\n"
    source = f"def f(x):\n{mark}    {body}\n"
    recorder = Recorder(2)
    recorder.enter(0)
    namespace: dict[str, Any] = {DECIDES: recorder.decides, REACHES: recorder.reaches}
    tree = counted(source, list(enumerate(points_of(source, Path("f.py"), _DECLARED))))
    exec(compile(tree, "f.py", "exec"), namespace)
    plain: dict[str, Any] = {}
    exec(source, plain)
    for value in values:
        assert namespace["f"](value) == plain["f"](value), "counting changes nothing"
    recorder.leave()
    return recorder.end().counts


@pytest.mark.parametrize("body", [_BODIES["if"], _BODIES["assigned"], _BODIES["try"], _BODIES["conditional"], _ELIF])
def test_each_outcome_is_counted(body: str) -> None:
    assert _counts(body, 1, 0, 1) == (2, 1)


def test_negated_condition_is_counted_as_written() -> None:
    assert _counts(_BODIES["return"], 1, 0, 1) == (1, 2)


def test_each_turn_of_a_loop_is_counted() -> None:
    assert _counts(_BODIES["while"], 1, 0) == (1, 2)


def test_condition_of_a_comprehension_is_counted_where_it_begins() -> None:
    body = "        each for each in x\n        # Decision p\n        if each\n    ]\n"
    source = "def f(x):\n    return [\n" + body
    recorder = Recorder(2)
    recorder.enter(0)
    namespace: dict[str, Any] = {DECIDES: recorder.decides, REACHES: recorder.reaches}
    exec(
        compile(counted(source, list(enumerate(points_of(source, Path("f.py"), _DECLARED)))), "f.py", "exec"), namespace
    )
    assert namespace["f"]([0, 1, 2]) == [1, 2]
    recorder.leave()
    assert recorder.end().counts == (2, 1)


@pytest.mark.parametrize("source", ["# Decision p\nx = 1\n", "x = 1  # Decision p\n"])
def test_comment_at_no_decision_is_refused(source: str) -> None:
    with pytest.raises(PointError, match=r"f\.py:1: nothing is decided here"):
        counted(source, list(enumerate(points_of(source, Path("f.py"), _DECLARED))))


def test_all_points_of_the_broker_are_at_a_decision() -> None:
    by_path: dict[str, list[Any]] = {}
    for number, point in enumerate(declared_points()):
        by_path.setdefault(point.path, []).append((number, point))
    for path, points in by_path.items():
        tree = counted((Path(__file__).parents[3] / path).read_text(), points)
        calls = [each for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id in (DECIDES, REACHES)]
        assert len(calls) >= len(points)


def test_decisions_between_events_are_not_recorded() -> None:
    recorder = Recorder(2)
    for _ in range(3):
        recorder.decides(0, True)
    recorder.enter(0)
    recorder.decides(0, True)
    recorder.leave()
    recorder.decides(0, False)
    recorder.enter(0)
    recorder.leave()
    assert recorder.end().counts == (1, 0)


def test_decisions_are_reported_only_in_a_run_that_waits_for_them() -> None:
    recorder, module, reported = Recorder(), ModuleType("compiled"), list[str]()
    recorder.recompiled(module)
    for is_waited_for in (False, True):
        recorder.begin(is_waited_for)
        recorder.enter(0, reported.append if is_waited_for else None)
        getattr(module, REACHES)(1)
        recorder.leave()
        assert recorder.end().counts[:2] == (0, 1)
        getattr(module, REACHES)(1)
        assert recorder._reached == [1], "nothing is kept after a run"
    assert reported == [outcome_names()[1]]
    recorder.begin(is_waited_for=False)
    with pytest.raises(AssertionError, match="a fault waits for decisions"):
        recorder.enter(0, reported.append)


def test_pairs_are_of_one_node() -> None:
    recorder = Recorder(4)
    for node, place, value in ((1, 0, True), (2, 2, False), (1, 2, True)):
        recorder.enter(node)
        recorder.decides(place, value)
        recorder.leave()
    recorder.decides(0, True)
    assert recorder.end().counts == (1, 0, 1, 1), "what no node decides is not counted"
    assert recorder.end().pairs == {0 * 4 + 2}, "the decision of node 2 is no successor of that of node 1"


@pytest.mark.simulated
def test_counting_changes_no_run_and_a_run_that_misses_its_points_is_invalid() -> None:
    scenario = next(each for each in loader.load_all() if each.name == "01-lost-response")
    before = play_seed(scenario, 3, hashed=True).verdict
    watch()
    after = play_seed(scenario, 3, hashed=True).verdict
    assert after.trace_hash == before.trace_hash
    reached = after.reached.by_outcome()
    often = max(reached, key=lambda name: reached[name])
    assert reached[often] > 0
    never = next(name for name, times in reached.items() if not times)
    assert play_seed(replace(scenario, points=(often,)), 3).verdict.outcome is Outcome.PASSED
    of_another_revision = replace(scenario, points=(f"{never}@first",))
    assert play_seed(of_another_revision, 3).verdict.outcome is Outcome.PASSED
    assert play_seed(replace(scenario, points=(f"{never}@final",)), 3).verdict.outcome is Outcome.INVALID
    invalid = play_seed(replace(scenario, points=(never,)), 3).verdict
    assert invalid.outcome is Outcome.INVALID
    assert invalid.reasons == (f"the decision {never} was never reached",)
