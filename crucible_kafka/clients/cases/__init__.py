"""The cases, one file for each section. This finds them all, by section and by ID."""

import pkgutil
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Final

from crucible_kafka.clients.case import ClientCase

ORDER: Final = (
    *("ordinary", "bootstrap", "metadata", "sessions", "fetching", "producing", "groups", "transactions", "limits"),
    "manners",
)
"""The sections, in the order of reports. Each has a file of its own; ``metadata`` is in that of ``bootstrap``."""


class UnknownCase(Exception):  # noqa: N818
    """No case or section has this name."""


@cache
def all_cases() -> tuple[ClientCase, ...]:
    """Return every case of the files in ``cases``, in the order of ``ORDER`` and then of the files."""
    found = [
        value
        for module in pkgutil.iter_modules(__path__)
        for value in vars(import_module(f"{__name__}.{module.name}")).values()
        if isinstance(value, ClientCase)
    ]
    by_id = {value.id: value for value in found}
    assert len(by_id) == len(found), "two cases have the same ID"
    return tuple(sorted(found, key=lambda value: ORDER.index(value.section)))


def chosen(sections: Sequence[str], ids: Sequence[str]) -> tuple[ClientCase, ...]:
    """Return the cases of these sections and with these IDs, or all if none is named. A section may be the beginning
    of IDs, such as ``groups/commit``. Raise UnknownCase."""
    cases = all_cases()
    if not sections and not ids:
        return cases
    known = [case.id for case in cases]
    for name in ids:
        if name not in known:
            raise UnknownCase(f"There is no case {name!r}{_near(name, known)}; --list has all.")
    for name in sections:
        if not any(_is_in(each, name) for each in known):
            raise UnknownCase(f"There is no section {name!r}{_near(name, ORDER)}; they are {', '.join(ORDER)}.")
    return tuple(case for case in cases if case.id in ids or any(_is_in(case.id, name) for name in sections))


def _near(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _is_in(case_id: str, section: str) -> bool:
    return case_id.startswith(f"{section.rstrip('/')}/")
