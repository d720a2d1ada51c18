"""The cases, one file for each subject. This finds them all, by section and by ID."""

import pkgutil
from collections.abc import Sequence, Set
from functools import cache
from importlib import import_module

from bench.probe.case import ProbeCase
from scenarios.fields import did_you_mean

ORDER = (
    *("handshake", "metadata", "produce", "fetch", "offsets", "groups", "admin", "transactions", "tier"),
    *("restarts", "hostile"),
)
"""The first words of the IDs, in the order of reports."""


class UnknownCase(Exception):  # noqa: N818
    """No case or section has this name."""


@cache
def all_cases() -> tuple[ProbeCase, ...]:
    """Every case of the files in ``cases``, section by section in the order of the IDs."""
    found = [
        each
        for module in pkgutil.iter_modules(__path__)
        for value in vars(import_module(f"{__name__}.{module.name}")).values()
        for each in (value if isinstance(value, tuple) else (value,))
        if isinstance(each, ProbeCase)
    ]
    by_id = {each.id: each for each in found}
    assert len({id(each) for each in found}) == len(by_id), "two cases have the same ID"
    return tuple(sorted(by_id.values(), key=lambda each: (ORDER.index(each.id.partition("/")[0]), each.id)))


def chosen(sections: Sequence[str], ids: Sequence[str]) -> tuple[ProbeCase, ...]:
    """The cases of these sections and with these IDs; all if none is named. A section holds those below it: ``fetch``
    holds ``fetch/session``. Raise UnknownCase."""
    everything = all_cases()
    if not sections and not ids:
        return everything
    known = {each.id for each in everything}
    for name in ids:
        if name not in known:
            near = did_you_mean(name, known)
            raise UnknownCase(f"no case {name!r}{near}; --dry-run lists all")
    for name in sections:
        if not any(_is_in(each, name) for each in everything):
            raise UnknownCase(_no_section(name, {each.section for each in everything}))
    return tuple(each for each in everything if each.id in ids or any(_is_in(each, name) for name in sections))


def _no_section(name: str, sections: Set[str]) -> str:
    """Return the refusal, which lists the sections below the first word of the name, or else all first words."""
    near = did_you_mean(name, {*sections, *ORDER})
    first = name.partition("/")[0]
    if first in ORDER:
        below = sorted(section for section in sections if section.startswith(f"{first}/"))
        return f"no section {name!r}{near}; {first} has: {', '.join(below)}"
    return f"no section {name!r}{near}; sections: {', '.join(ORDER)}, and parts of them such as fetch/session"


def _is_in(case: ProbeCase, section: str) -> bool:
    return f"{case.section}/".startswith(f"{section.rstrip('/')}/")
