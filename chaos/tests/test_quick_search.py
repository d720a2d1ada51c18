"""What lived before a search may become garbage after it."""

import gc
import weakref

import pytest

from chaos.search.many_seeds import quickly


class Ring:
    """Only the garbage collector finds that nobody holds it."""

    def __init__(self) -> None:
        self.own = self


@pytest.mark.thorough
def test_what_lived_before_a_search_is_collected_once_it_is_not_referenced() -> None:
    ring = Ring()
    gone = weakref.ref(ring)
    with quickly():
        pass
    del ring
    gc.collect()
    assert gone() is None
