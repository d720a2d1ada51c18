"""Which rows of evidence are strikes. Only they say that a fault has fired."""

ANSWERED = "_answered"
"""Ends the kind of a row that tells what became of an earlier strike of the same fault."""


def is_strike(kind: str) -> bool:
    """Returns whether a row of this kind counts as one hit of its fault."""
    return not kind.endswith(ANSWERED)
