"""The picture of the architecture follows the code."""

import pytest

from tools.architecture import PICTURE, SUITE, descriptions, drawing, layers
from tools.architecture import ROOT as CLONE


@pytest.mark.thorough
def test_picture_is_up_to_date() -> None:
    assert drawing() == PICTURE.read_text(), "run `python -m tools.architecture`"


def test_every_room_is_described_and_exists() -> None:
    rooms = [room for layer in layers() for room in layer]
    folders = {path.parent.name for path in (CLONE / "reference_broker").glob("*/__init__.py")}
    assert set(rooms) == folders
    assert set(descriptions(CLONE / "reference_broker" / "README.md")) == folders
    assert set(SUITE) < set(descriptions(CLONE / "docs" / "architecture.md"))


def test_table_of_rooms_is_in_the_order_of_the_layers() -> None:
    described = list(descriptions(CLONE / "reference_broker" / "README.md"))
    place = {room: number for number, layer in enumerate(reversed(layers())) for room in layer}
    assert [place[room] for room in described] == sorted(place[room] for room in described)
