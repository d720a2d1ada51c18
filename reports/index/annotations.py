"""Notes that people keep beside the nights, such as a change of the machine. Figures show them."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import msgspec

from reports.night import ANNOTATIONS_NAME, NightError


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``row`` is the row of the benchmark that the note is about. Empty: all of them."""

    at: date
    text: str
    row: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    note: tuple[Note, ...] = ()


def read_notes(nights: Path) -> Sequence[Note]:
    """The notes in the order of their days. Raises NightError."""
    path = nights / ANNOTATIONS_NAME
    if not path.is_file():
        return ()
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError) as error:
        raise NightError(
            f'{path} cannot be read ({error}): each note is [[note]] with at = 2026-11-28, text = "..." and, if it is '
            'about one row of the benchmark, row = "produce"'
        ) from error
    return sorted(found.note, key=lambda one: one.at)
