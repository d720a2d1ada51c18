"""Values that a search does not freeze: made as before, equal as before, and frozen again afterwards."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from chaos.checks.check import Violation
from chaos.search.run_sim import run
from chaos.sim.speedups import plain_values
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from scenarios import loader


@pytest.mark.thorough
def test_a_value_is_frozen_again_and_equal_to_one_made_inside() -> None:
    with plain_values():
        inside: Any = Violation("lost-write", 0, "")
        inside.at_us = 1
    outside: Any = Violation("lost-write", 1, "")
    assert inside == outside
    assert repr(inside) == repr(outside)
    for value in (inside, outside):
        with pytest.raises(FrozenInstanceError):
            value.at_us = 2


def test_default_values_are_equal_inside_plain_values() -> None:
    with plain_values():
        assert MetadataImage() == EMPTY_IMAGE


def test_a_seed_has_the_same_hash_inside_plain_values() -> None:
    frozen = run(loader.find("1"), 4_600_001, hashed=True)
    with plain_values():
        assert run(loader.find("1"), 4_600_001, hashed=True) == frozen
