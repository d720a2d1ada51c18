"""Rows that jobs return, as plain values."""

from collections.abc import Sequence
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]
"""A row by its column names, which the docstring of the job lists."""
Rows: TypeAlias = Sequence[Row]


def without_presets(faults: Rows) -> list[Row]:
    """Return the faults, or the hits, that are not presets. Presets are the state in which a run begins."""
    return [row for row in faults if not row["kind"].startswith("preset")]
