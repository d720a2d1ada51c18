import os
import time

import pytest

from chaos.search.children import ChildDiedError, in_children


def test_results_come_in_the_order_of_the_parts_whichever_is_ready_first() -> None:
    def slept(seconds: float) -> tuple[float, int]:
        time.sleep(seconds)
        return seconds, os.getpid()

    results = list(in_children(slept, [0.1, 0.0, 0.05], 3))
    assert [seconds for seconds, _ in results] == [0.1, 0.0, 0.05]
    assert len({os.getpid(), *(number for _, number in results)}) == 4


def test_first_part_is_done_here_and_known_before_a_child_has_done_its_own() -> None:
    def process_of(seconds: float) -> int:
        time.sleep(seconds)
        return os.getpid()

    results = in_children(process_of, [0.0, 60.0], 2, first_here=True)
    assert next(results) == os.getpid()
    results.close()  # type: ignore[attr-defined]


def test_changes_in_parent_are_inherited_only_by_later_children() -> None:
    known: list[int] = []

    def noted(number: int) -> list[int]:
        if not known:
            known.append(number)
        return list(known)

    results = in_children(noted, [1, 2, 3, 4], 2, first_here=True)
    assert list(results) == [[1], [2], [1], [1]]


def test_child_gets_its_parts_one_by_one_and_ends_after_a_few() -> None:
    parts_of: dict[int, list[int]] = {}
    for number, process in enumerate(in_children(lambda _: os.getpid(), range(7), 1, parts_each=3)):
        parts_of.setdefault(process, []).append(number)
    assert list(parts_of.values()) == [[0, 1, 2], [3, 4, 5], [6]]


def test_child_that_ends_without_a_result_is_an_error() -> None:
    with pytest.raises(ChildDiedError, match="exit code 3"):
        list(in_children(os._exit, [3], 1))


def test_children_are_ended_when_their_parent_is_gone() -> None:
    started = time.monotonic()
    results = in_children(time.sleep, [0.0, 60.0, 60.0], 2)
    assert next(results) is None
    results.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 30
