"""Changes that a search makes for a while: values that are not frozen, and short slices."""

import sys
from dataclasses import FrozenInstanceError
from types import ModuleType
from typing import Any

import pytest

from chaos.checks.check import Violation
from chaos.sim.one_seed import play_seed
from chaos.sim.speedups import plain_values
from chaos.sim.world import short_slices
from reference_broker.metadata.image import EMPTY_IMAGE, MetadataImage
from reference_broker.ports import slicing
from scenarios import loader


@pytest.mark.thorough
def test_value_is_frozen_again_and_equal_to_one_made_inside() -> None:
    with plain_values():
        inside: Any = Violation("lost-write", 0, "")
        inside.at_us = 1
    outside: Any = Violation("lost-write", 1, "")
    assert inside == outside
    assert repr(inside) == repr(outside)
    for value in (inside, outside):
        with pytest.raises(FrozenInstanceError):
            value.at_us = 2


@pytest.mark.thorough
def test_default_values_are_equal_inside_plain_values() -> None:
    with plain_values():
        assert MetadataImage() == EMPTY_IMAGE


@pytest.mark.thorough
def test_seed_has_the_same_hash_inside_plain_values() -> None:
    frozen = play_seed(loader.find("1"), 4_600_001, hashed=True).verdict
    with plain_values():
        assert play_seed(loader.find("1"), 4_600_001, hashed=True).verdict == frozen


def test_short_slices_end_with_their_block_also_in_modules_that_are_imported_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handler is imported with the first request for it, which may come in a run with short slices."""
    own, late = slicing.LISTED_PER_SLICE, ModuleType("reference_broker.late")
    with short_slices(1):
        monkeypatch.setitem(sys.modules, late.__name__, late)
        vars(late)["LISTED_PER_SLICE"] = slicing.LISTED_PER_SLICE
        assert vars(late)["LISTED_PER_SLICE"] == 1
    assert vars(late)["LISTED_PER_SLICE"] == slicing.LISTED_PER_SLICE == own
