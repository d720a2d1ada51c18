"""Lists what Apache Kafka's own tests assert, with the tests of ours that show the same, or why it does not apply.

The list is made from the sources each time. Only ``reference_broker/conformance.toml`` is typed by hand.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from scenarios.clauses import ROOT, marked_tests

TABLE = "reference_broker/conformance.toml"
_NOT_BEHAVIOURS = ("path", "unlike")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What one test of Kafka asserts.

    ``id`` is the class and the method of Kafka's test, ``path`` its file in Kafka's repository. ``unlike`` says why the
    behaviour does not apply here. If it is empty the behaviour applies, and ``tests`` (path::name) show it.
    """

    id: str
    text: str
    path: str
    tests: tuple[str, ...]
    unlike: str = ""

    @property
    def status(self) -> str:
        """``proven``, ``not proven``, or ``does not apply``."""
        if self.unlike:
            return "does not apply"
        return "proven" if self.tests else "not proven"


def all_behaviours(root: Path = ROOT) -> tuple[Behaviour, ...]:
    """Returns every behaviour of the table, in its order."""
    tests = marked_tests(root)
    found = []
    for suite, section in _table(root).items():
        path, unlike = str(section["path"]), section.get("unlike", {})
        assert isinstance(unlike, dict), f"[{suite}.unlike] of {TABLE} is a table"
        for name, text in section.items():
            each = f"{suite}.{name}"
            if name not in _NOT_BEHAVIOURS:
                found.append(Behaviour(each, str(text), path, tuple(tests.get(each, ()))))
        for name, why in unlike.items():
            each = f"{suite}.{name}"
            found.append(Behaviour(each, str(why), path, tuple(tests.get(each, ())), str(why)))
    return tuple(found)


def _table(root: Path) -> dict[str, dict[str, object]]:
    path = root / TABLE
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        return tomllib.load(file)
