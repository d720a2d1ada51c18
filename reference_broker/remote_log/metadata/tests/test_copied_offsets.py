"""Copied offsets compared with a set of numbers."""

from hypothesis import given
from hypothesis import strategies as st

from reference_broker.remote_log.metadata.remote_log_metadata_cache import CopiedOffsets


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=12))
def test_added_ranges_are_merged_when_touching(ranges: list[tuple[int, int]]) -> None:
    offsets, naive = CopiedOffsets(), set[int]()
    for start, length in ranges:
        offsets.add(start, start + length)
        naive.update(range(start, start + length))
        assert {offset for offset in range(-1, 45) if offset in offsets} == naive
        runs = sum(offset - 1 not in naive for offset in naive)
        assert len(offsets._starts) == len(offsets._ends) == runs
