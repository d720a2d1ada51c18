"""Ranges against sets, and the verdict on planted losses, repeats and reorders."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.ledger import Range, Read, Sent, add, count, judge, without

ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)).map(lambda one: (one[0], one[0] + one[1])))


def numbers(ranges: list[Range]) -> set[int]:
    return {number for first, end in ranges for number in range(first, end)}


def normal(ranges: list[Range]) -> list[Range]:
    result: list[Range] = []
    for first, end in ranges:
        add(result, first, end)
    return result


@given(ranges)
def test_ranges_are_the_set_of_their_numbers(parts: list[Range]) -> None:
    found: list[Range] = []
    seen: set[int] = set()
    for first, end in parts:
        assert add(found, first, end) == len(seen & set(range(first, end)))
        seen |= set(range(first, end))
    assert numbers(found) == seen
    assert count(found) == len(seen)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))


@given(ranges, ranges)
def test_difference_is_that_of_the_sets(one: list[Range], other: list[Range]) -> None:
    assert numbers(without(normal(one), normal(other))) == numbers(one) - numbers(other)


def sent(*ok: Range, fail: tuple[Range, ...] = (), info: tuple[Range, ...] = ()) -> dict[str, Sent]:
    ledger = Sent()
    for kind, parts in (("ok", ok), ("fail", fail), ("info", info)):
        for first, end in parts:
            ledger.add(kind, None, first, end)
    return {"p0": ledger}


def read(*spans: Range, valid: bool = True) -> list[Read]:
    ledger = Read()
    for first, end in spans:
        ledger.add("t", 0, "p0", first, end - first, valid)
    return [ledger]


def test_records_read_once_in_order_are_clean() -> None:
    findings = judge(sent((0, 30), info=((30, 40),)), [read((0, 10), (10, 35))], exactly_once=True)
    assert findings.is_clean
    assert (findings.acknowledged, findings.read) == (30, 35)


@pytest.mark.parametrize(
    ("spans", "name", "records"),
    [
        ([(0, 10), (12, 30)], "lost", 2),
        ([(0, 20)], "lost", 10),
        ([(0, 20), (15, 30)], "repeated", 5),
        ([(0, 10), (20, 30), (10, 20)], "reordered", 10),
        ([(0, 30), (50, 53)], "refused_but_read", 3),
    ],
)
def test_each_violation_is_counted(spans: list[Range], name: str, records: int) -> None:
    findings = judge(sent((0, 30), fail=((50, 60),)), [read(*spans)], exactly_once=True)
    counts = {each: getattr(findings, each) for each in ("lost", "repeated", "reordered", "refused_but_read")}
    assert counts == {each: records if each == name else 0 for each in counts}
    assert not findings.is_clean


def test_value_that_proves_nothing_is_damaged_and_its_record_lost() -> None:
    findings = judge(sent((0, 30)), [[*read((0, 29)), *read((29, 30), valid=False)]], exactly_once=True)
    assert (findings.damaged, findings.lost) == (1, 1)
    assert findings.first_lost == "subscription 0 never read the sequences 29 to 29 of p0"


def test_repeats_are_allowed_without_idempotence() -> None:
    assert judge(sent((0, 30)), [read((0, 30), (20, 30))], exactly_once=False).is_clean


def test_in_a_compacted_topic_only_the_last_record_of_a_key_must_be_read() -> None:
    far = 1 << 40
    written = sent((0, 35), (far, far + 12))
    findings = judge(written, [read((25, 35), (far + 2, far + 12))], exactly_once=True, compacted_keys=10)
    assert findings.is_clean
    findings = judge(written, [read((26, 35), (far + 5, far + 12))], exactly_once=True, compacted_keys=10)
    assert findings.lost == 1 + 3
    assert findings.first_lost == "subscription 0 never read the sequences 25 to 25 of p0"
    assert judge(written, [read((25, 35))], exactly_once=True).lost == 25 + 12


def test_record_that_a_later_one_skips_is_superseded_by_the_next() -> None:
    written = sent((0, 10), (20, 30), fail=((10, 20),))
    assert judge(written, [read((20, 30))], exactly_once=True, compacted_keys=10).is_clean


def test_record_that_is_perhaps_written_supersedes_those_of_its_key_alone() -> None:
    """A cleaner may have removed a record for one whose producer never learned that it was written."""
    written = sent((0, 10), info=((10, 20),))
    assert judge(written, [read((10, 20))], exactly_once=True, compacted_keys=10).is_clean
    assert judge(written, [read((5, 10))], exactly_once=True, compacted_keys=10).is_clean
    near_miss = sent((0, 10), info=((10, 14),))
    findings = judge(near_miss, [read((5, 10))], exactly_once=True, compacted_keys=10)
    assert findings.lost == 1
    assert findings.first_lost == "subscription 0 never read the sequences 4 to 4 of p0"
    earlier = sent((10, 20), info=((0, 10),))
    assert judge(earlier, [read((0, 10))], exactly_once=True, compacted_keys=10).lost == 10


def test_each_subscription_must_read_all() -> None:
    findings = judge(sent((0, 30)), [read((0, 30)), read((0, 10))], exactly_once=True)
    assert findings.lost == 20
    assert findings.first_lost.startswith("subscription 1 ")


def test_readers_of_one_subscription_share_it() -> None:
    findings = judge(sent((0, 30)), [[*read((0, 10)), *read((10, 30))]], exactly_once=True)
    assert findings.is_clean
    assert judge(sent((0, 30)), [[*read((0, 12)), *read((10, 30))]], exactly_once=True).repeated == 2
