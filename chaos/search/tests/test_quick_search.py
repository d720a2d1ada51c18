"""Garbage collection around a search: objects from before it may become garbage after it."""

import gc
import weakref

import pytest

from chaos.search.many_seeds import quickly


class Ring:
    """Only the garbage collector frees it."""

    def __init__(self) -> None:
        self.own = self


@pytest.mark.thorough
def test_object_from_before_search_is_collected_after_search() -> None:
    ring = Ring()
    gone = weakref.ref(ring)
    with quickly():
        pass
    del ring
    gc.collect()
    assert gone() is None
