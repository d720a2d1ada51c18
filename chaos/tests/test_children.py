import os
import time

import pytest

from chaos.search.children import ChildDiedError, in_children


def test_results_come_in_the_order_of_the_parts_whichever_is_ready_first() -> None:
    def slept(seconds: float) -> tuple[float, int]:
        time.sleep(seconds)
        return seconds, os.getpid()

    found = list(in_children(slept, [0.1, 0.0, 0.05], 3))
    assert [seconds for seconds, _ in found] == [0.1, 0.0, 0.05]
    assert len({os.getpid(), *(number for _, number in found)}) == 4


def test_changes_in_parent_are_inherited_only_by_later_children() -> None:
    known: list[str] = []
    found = in_children(lambda _: list(known), [1, 2, 3], 2, lambda: known.append("warm"))
    assert list(found) == [[], ["warm"], ["warm"]]


def test_child_that_ends_without_a_result_is_an_error() -> None:
    with pytest.raises(ChildDiedError, match="exit code 3"):
        list(in_children(os._exit, [3], 1))


def test_children_are_ended_when_their_parent_is_gone() -> None:
    started = time.monotonic()
    found = in_children(time.sleep, [0.0, 60.0, 60.0], 2)
    assert next(found) is None
    found.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 30
