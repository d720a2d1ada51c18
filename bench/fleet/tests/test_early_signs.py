"""Violations that a worker sees while the load runs: real ones at once, and none in clean histories."""

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from bench.fleet.early_signs import MAX_SPANS, EarlySigns
from reports.rows import SpanRow


def read(first: int, count: int, writer: str = "a", sequence: int | None = None, valid: bool = True) -> SpanRow:
    """A read run; the writer's numbers are the offsets unless ``sequence`` says otherwise."""
    return SpanRow("p", 0, 0, "read", "hot", 1, first, count, 9, writer, first if sequence is None else sequence, valid)


def seen(rows: Sequence[SpanRow]) -> dict[str, int]:
    signs = EarlySigns()
    for row in rows:
        signs.read(row)
    return signs.seen


def test_two_values_at_one_offset_are_seen_in_either_order_and_only_where_they_meet() -> None:
    assert seen([read(0, 10), read(9, 3, "b", 0)])["inconsistent-offsets"] == 1
    assert seen([read(9, 3, "b", 0), read(0, 10)])["inconsistent-offsets"] == 1
    assert seen([read(0, 10), read(10, 3, "b", 0), read(13, 5)])["inconsistent-offsets"] == 0
    assert seen([read(0, 10), read(4, 2, "a", 5)])["inconsistent-offsets"] == 1, "the same writer, another number"


def test_damaged_or_foreign_value_is_seen() -> None:
    assert seen([read(0, 1, valid=False), read(1, 1, writer=""), read(2, 1)]) == {
        "corrupt-value": 2,
        "inconsistent-offsets": 0,
    }


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, int, str]]:
    """A log as spans (first offset, count, writer), one after the other."""
    counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    writers = draw(st.lists(st.sampled_from("abc"), min_size=len(counts), max_size=len(counts)))
    return [
        (sum(counts[:place]), count, writer) for place, (count, writer) in enumerate(zip(counts, writers, strict=True))
    ]


@given(logs(), st.integers(0, 2**32), st.integers(1, 60))
def test_readers_of_one_log_never_raise_a_sign_and_one_wrong_offset_always_does(
    log: list[tuple[int, int, str]], seed: int, reads: int
) -> None:
    random = Random(seed)

    def part() -> SpanRow:
        first, count, writer = random.choice(log)
        skipped = random.randrange(count)
        return read(first + skipped, random.randint(1, count - skipped), writer, 1_000 * first + skipped)

    signs = EarlySigns()
    rows = [part() for _ in range(reads)]
    for row in rows:
        signs.read(row)
    assert signs.seen["inconsistent-offsets"] == 0
    again = random.choice(rows)
    place = again.first_offset + random.randrange(again.count)
    signs.read(read(place, 1, "another", 7))
    assert signs.seen["inconsistent-offsets"] == 1


def test_kept_spans_are_limited() -> None:
    signs = EarlySigns()
    for number in range(MAX_SPANS + 10):
        signs.read(read(3 * number, 1))
    signs.read(read(0, 1, "b"))
    assert signs.seen["inconsistent-offsets"] == 0, "the lowest offsets are forgotten"
    signs.read(read(3 * MAX_SPANS, 1, "b"))
    assert signs.seen["inconsistent-offsets"] == 1
