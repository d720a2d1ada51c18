"""Rows of a run and their order."""

import pytest

import bench.rows.compare  # noqa: F401  (imports all rows)
from bench.rows.context import MEASURES
from bench.rows.options import ALONE, OURS, ROWS, Options
from bench.rows.results import Figure, Samples, alternate


def test_every_row_is_declared() -> None:
    assert MEASURES.keys() == set(ROWS)


def test_rows_run_in_their_own_order_whatever_the_order_in_which_they_were_named() -> None:
    assert Options("kafka", ("fetch", "ladder")).chosen() == ("ladder", "fetch")
    assert (*Options("kafka").chosen(), *OURS) == ROWS
    assert Options().chosen() == ALONE


@pytest.mark.parametrize("wrong", [{"rows": ("nothing",)}, {"nodes": (2,)}])
def test_unknown_options_are_rejected(wrong: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(ValueError, match="is not known"):
        Options("kafka", **wrong)  # type: ignore[arg-type]


def test_each_pair_is_measured_in_the_other_order_than_the_one_before() -> None:
    assert list(alternate("ab", 3)) == [(0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "a"), (2, "b")]


def test_pairs_stay_pairs_whatever_the_order() -> None:
    samples = Samples(["a", "b"], "s")
    for pair, name in alternate(["a", "b"], 2):
        samples.add(name, pair + (0.5 if name == "b" else 0.0))
    assert samples.figures() == (Figure((0.0, 1.0), "s"), Figure((0.5, 1.5), "s"))


def test_without_a_peer_there_is_one_figure() -> None:
    samples = Samples(["a"], "s")
    samples.add("a", 1.0)
    assert samples.figures() == (Figure((1.0,), "s"), None)
