"""Describes the bug that ends a node, in one line of limited length for the log."""

MAX_SAID = 2000
"""Characters of one argument of the exception."""
PLACES = 6


def told(bug: Exception) -> str:
    """Returns the exception, the last places that it passed, and what the node was doing (its notes)."""
    places = []
    trace = bug.__traceback__
    while trace is not None:
        places.append(f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}")
        trace = trace.tb_next
    notes = "".join(f", {note}" for note in getattr(bug, "__notes__", ()))
    return f"{type(bug).__name__}: {_said(bug)} at {' > '.join(places[-PLACES:])}{notes}"


def _said(bug: Exception) -> str:
    """The exception's arguments, with objects shown by their class only.

    A KeyError holds the key itself. Spelling out a cached partition would spell out its session, the session's
    partitions, their logs and their watchers: hundreds of megabytes, made by a node that should end at once.
    """
    if isinstance(bug, OSError):
        return str(bug)[:MAX_SAID]
    return ", ".join(str(one)[:MAX_SAID] if isinstance(one, str | int) else type(one).__name__ for one in bug.args)
