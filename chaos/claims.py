"""Counts how often each rule has struck, over all nodes of a run and all their incarnations.

A rule's ``total`` limits the number of its hits in a run. So an interceptor claims each hit before it strikes.
"""

import os
from pathlib import Path
from typing import Protocol


class Claims(Protocol):
    """Shared by all interceptors of a run."""

    def claim(self, rule: str, total: int) -> int:
        """Returns the number of this hit of the rule, from 1 on, or 0 if ``total`` hits are taken already. A ``total``
        of 0 means no bound."""
        ...


class SharedClaims:
    """Implements Claims inside one process (the simulator)."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def claim(self, rule: str, total: int) -> int:
        taken = self._taken.get(rule, 0)
        if total and taken >= total:
            return 0
        self._taken[rule] = taken + 1
        return taken + 1

    def forget(self, rule: str) -> None:
        """Counts the hits of the next rule with this name from the start."""
        self._taken.pop(rule, None)


class FileClaims:
    """Implements Claims between processes, each of which may be killed at any moment.

    Hit n belongs to the process that creates file n of the rule. A run has one ``folder``, which is made if missing.
    Without a bound each process numbers its own hits.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._taken: dict[str, int] = {}

    def claim(self, rule: str, total: int) -> int:
        number = self._taken.get(rule, 0) + 1
        while total and number <= total and not self._create(f"{rule}-{number}"):
            number += 1
        self._taken[rule] = min(number, total) if total else number
        return 0 if total and number > total else number

    def _create(self, name: str) -> bool:
        try:
            os.close(os.open(self._folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True
