"""The table of fault kinds and the names that scenarios use."""

from chaos.faults.kinds import KINDS
from scenarios.vocabulary import TIMED_KINDS


def test_each_kind_of_the_vocabulary_is_declared_in_the_same_order() -> None:
    assert tuple(KINDS) == TIMED_KINDS
