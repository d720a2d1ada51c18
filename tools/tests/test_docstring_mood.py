"""First words of functions' docstrings: imperatives, as in the standard library's documentation."""

import re

import pytest

from tools.checks import ROOT

VERBS = (
    "Adds|Asks|Begins|Appends|Checks|Closes|Creates|Deletes|Makes|Lets|"
    "Continues|Forgets|Notes|Opens|Plays|Reads|Returns|Runs|Sends|Sets|Takes|Waits|Writes|Yields"
)
ROOMS = ("bench", "campaigns", "chaos", "crucible_kafka", "reference_broker", "reports", "scenarios", "tools")
THIRD_PERSON = re.compile(rf'^ *(?:async )?def [^"]*?:\n\s+r?"""(?:{VERBS})\b', re.MULTILINE)


def functions_in_third_person(source: str) -> int:
    return len(THIRD_PERSON.findall(source))


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('def f() -> None:\n    """Returns it."""\n', 1),
        ('    async def f(\n        self,\n    ) -> None:\n        """Sends it."""\n', 1),
        ('def f() -> None:\n    """Return it."""\n', 0),
        ('class F(Protocol):\n    """Reads it."""\n', 0),
    ],
)
def test_near_misses_are_distinguished(source: str, count: int) -> None:
    assert functions_in_third_person(source) == count


def test_docstrings_of_functions_begin_with_an_imperative() -> None:
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    assert len(paths) > 1_000
    assert not {str(path): count for path in paths if (count := functions_in_third_person(path.read_text()))}
