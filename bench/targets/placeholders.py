"""Placeholders such as ``{port}`` in the texts of a target's file. Other braces stay as they are."""

import re
from collections.abc import Iterator, Mapping, Sequence

from bench.targets.errors import TargetError

OF_AN_ADDRESS = ("id", "name", "host", "port", "address")
OF_A_NODE = (
    *OF_AN_ADDRESS,
    "advertised",
    *("ports", "nodes", "replicas", "version", "folder", "data", "hosts", "root", "python"),
    *("cluster_id", "voters", "peers", "settings", "features"),
)
OF_A_COMMAND = ("id", "address")
OF_A_SETTING = ("key", "value")
SEVERAL = "..."
_PLACEHOLDER = re.compile(r"\{([a-z_]+)(\.\.\.)?\}")


def named_in(text: str) -> Iterator[str]:
    return (found[1] for found in _PLACEHOLDER.finditer(text))


def filled(text: str, words: Mapping[str, str]) -> str:
    """Puts in the words. Raises TargetError for a placeholder that nobody knows."""

    def put(found: re.Match[str]) -> str:
        if found[1] not in words:
            raise TargetError(f"the placeholder {found[0]} is unknown; known here: {', '.join(sorted(words))}")
        return words[found[1]]

    return _PLACEHOLDER.sub(put, text)


def filled_list(texts: Sequence[str], words: Mapping[str, str], several: Mapping[str, Sequence[str]]) -> list[str]:
    """Does the same for the words of a command. A word that is ``{name...}`` becomes those that ``several`` has for the
    name, or the parts of its text between spaces."""
    found: list[str] = []
    for text in texts:
        alone = _PLACEHOLDER.fullmatch(text)
        if alone is None or alone[2] != SEVERAL:
            found.append(filled(text, words))
        elif alone[1] in several:
            found.extend(several[alone[1]])
        else:
            found.extend(filled(text, words).split())
    return found
