"""Assertions of Apache Kafka's own tests: our tests of the same behaviour, or why one does not apply.

The list is derived from the sources each time. Only the files in ``reference_broker/conformance`` are written by hand,
as the README there says.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scenarios.clauses import ROOT, marked_tests

TABLES = "reference_broker/conformance"
_NOT_BEHAVIOURS = ("path", "unlike")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The assertion of one test of Kafka."""

    id: str
    """Class and method of Kafka's test, or the class alone if nothing of it applies here."""
    text: str
    path: str
    """Its file in Kafka's repository."""
    tests: tuple[str, ...]
    """The tests (path::name) that show the behaviour here."""
    unlike: str = ""
    """Why the behaviour does not apply here. Empty: it applies."""

    @property
    def status(self) -> str:
        """``proven``, ``not proven``, or ``does not apply``."""
        if self.unlike:
            return "does not apply"
        return "proven" if self.tests else "not proven"


def all_behaviours(root: Path = ROOT) -> tuple[Behaviour, ...]:
    """Return every behaviour, in the order of the files' names and of the lines in each file."""
    tests = marked_tests(root)
    behaviours = []
    for suite, section in _sections(root).items():
        path = str(section["path"])
        for name, text in section.items():
            if name not in _NOT_BEHAVIOURS:
                behaviour_id = f"{suite}.{name}"
                behaviours.append(Behaviour(behaviour_id, str(text), path, tuple(tests.get(behaviour_id, ()))))
        for name, why in _unlike(section.get("unlike", {})):
            behaviour_id = f"{suite}.{name}" if name else suite
            behaviours.append(Behaviour(behaviour_id, why, path, tuple(tests.get(behaviour_id, ())), why))
    return tuple(behaviours)


def _unlike(said: object) -> Iterator[tuple[str, str]]:
    """Yield each method with the reason why it does not apply. The name is empty if the reason is for the class."""
    if isinstance(said, str):
        yield "", said
        return
    assert isinstance(said, dict), f"`unlike` is one reason, or a table: {said}"
    for key, value in said.items():
        if isinstance(value, list):
            yield from ((str(name), str(key)) for name in value)
        else:
            yield str(key), str(value)


def _sections(root: Path) -> dict[str, dict[str, object]]:
    sections: dict[str, dict[str, object]] = {}
    for path in sorted((root / TABLES).glob("*.toml")):
        with path.open("rb") as file:
            for suite, section in tomllib.load(file).items():
                assert suite not in sections, f"{suite} is in {path.name} and in another file"
                sections[suite] = section
    return sections
