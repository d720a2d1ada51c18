"""Differential runs: each kind gives the same results both ways, its mutants do not, and a difference is explained."""

import pytest
from click.testing import CliRunner

from chaos.mutants.mutant import applied
from chaos.mutants.registry import by_name
from chaos.search.differ import (
    KILLED_BY,
    KINDS,
    Difference,
    DifferResult,
    ScriptClient,
    compare,
    explain,
    play_script,
    script,
    search_difference,
)
from chaos.search.differ_scripts import Operation
from chaos.search.differ_world import ClientResult, NoResponse, Way
from crucible_kafka.commands.sim import differ

SEED = 4
PAIRS = [(kind, mutant) for kind, mutants in KILLED_BY.items() for mutant in mutants]


@pytest.mark.simulated
@pytest.mark.parametrize("name", KINDS)
def test_both_ways_give_equal_responses(name: str) -> None:
    results = DifferResult(name)
    difference = compare(KINDS[name], SEED, results)
    assert difference is None, "\n".join(explain(difference))
    assert results.operations > 60


@pytest.mark.nightly
@pytest.mark.simulated
@pytest.mark.parametrize("name", KINDS)
def test_both_ways_give_equal_responses_in_many_seeds(name: str) -> None:
    difference = search_difference(KINDS[name], range(1000, 1030)).difference
    assert difference is None, "\n".join(explain(difference))


@pytest.mark.simulated
@pytest.mark.rotated(11)
@pytest.mark.parametrize(("kind", "mutant"), PAIRS, ids=[f"{kind}-{mutant}" for kind, mutant in PAIRS])
def test_kind_kills_its_mutants_and_the_difference_can_be_repeated(kind: str, mutant: str) -> None:
    with applied(by_name(mutant)) as in_place:
        difference = search_difference(KINDS[kind], range(1, 6), mutant).difference
        assert in_place is not None
        assert in_place.calls
        assert difference is not None, "the mutant survives"
        assert compare(KINDS[kind], difference.seed, DifferResult(kind), mutant) == difference
    assert difference.command == f"./crucible differ {kind} --seed {difference.seed} --mutant {mutant}"


def test_each_kind_has_a_mutant() -> None:
    assert KILLED_BY.keys() == KINDS.keys()
    assert all(KILLED_BY.values())


def test_script_depends_on_its_seed_alone() -> None:
    kind = KINDS["tier"]
    assert script(kind, 7) == script(kind, 7)
    assert script(kind, 7) != script(kind, 8)


OPERATIONS = [
    Operation("create_topic", ("t", 1, {"segment.bytes": "300"})),
    Operation("init_producer", ("p", "", False)),
    Operation("init_producer", ("x", "x", True)),
    Operation("produce", ("p", "t", 0, 2, 1, 0)),
    Operation("retry", ("p", "t", 0, 0)),
    Operation("produce", ("p", "t", 0, 1, 2, 5)),
    Operation("produce", ("x", "t", 0, 2, 3, 0)),
    Operation("read", ("t", 0, 0.0, 1)),
    Operation("end_transaction", ("x", False)),
    Operation("produce", ("", "t", 0, 1, 4, 0)),
    Operation("read", ("t", 0, 0.0, 1)),
]


def _value(result: ClientResult, name: str) -> object:
    return dict(result)[name]


@pytest.mark.simulated
def test_compared_responses_match_kafka_clients() -> None:
    """Responses that both ways lack would hide every difference, so some are compared with what Kafka's clients get."""
    *_, retried, gap, in_transaction, before, ended, _, after = play_script(Way(), OPERATIONS, 1)
    assert (_value(retried, "error"), _value(retried, "base offset")) == ("none", 0)
    assert _value(gap, "error") == "out_of_order_sequence_number"
    assert _value(in_transaction, "base offset") == 2
    assert (_value(before, "last stable offset"), _value(before, "high watermark")) == (2, 4)
    assert _value(before, "end") == "is reached"
    assert _value(ended, "error") == "none"
    records = _value(after, "records")
    assert isinstance(records, tuple)
    assert [record[0] for record in records] == [0, 1, 5], "aborted records 2 and 3 and the marker 4 are hidden"


def test_explanation_names_the_operation_what_differs_and_the_command() -> None:
    left: ClientResult = (("error", "none"), ("records", ((0, b"a"), (1, b"b"))))
    right: ClientResult = (("error", "none"), ("records", ((0, b"a"), (1, b"c"))))
    operation = Operation("read", ("t", 0, 0.0, 1))
    difference = Difference("nodes", 7, 3, operation, ("one node", "three nodes"), left, right, (), "some_mutant")
    lines = list(explain(difference))
    assert lines[0] == "  seed 7, operation 3: read('t', 0, 0.0, 1)"
    assert lines[2:5] == ["  records 1", "    one node: (1, b'b')", "    three nodes: (1, b'c')"]
    assert lines[-1] == "  ./crucible differ nodes --seed 7 --mutant some_mutant"


@pytest.mark.simulated
def test_runs_that_both_end_early_are_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> ClientResult:
        raise NoResponse("planted")

    monkeypatch.setattr(ScriptClient, "init_producer", fail)
    results = DifferResult("slices")
    difference = compare(KINDS["slices"], SEED, results)
    assert difference is not None
    assert difference.left == difference.right == (("the run ended", "planted"),)


def test_unknown_kind_or_mutant_is_refused() -> None:
    result = CliRunner().invoke(differ, ["no-such-kind"])
    assert result.exit_code == 2
    assert "there are: slices, sessions" in result.output
    assert CliRunner().invoke(differ, ["slices", "--mutant", "no_such_mutant"]).exit_code == 2
