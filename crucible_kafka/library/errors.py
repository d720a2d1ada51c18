"""Exceptions of the library. The message of each is one sentence that says what to do."""

from difflib import get_close_matches


class CrucibleError(Exception):
    """Base of the library's exceptions."""


class StartFailed(CrucibleError):  # noqa: N818 - says what happened
    """A node did not start."""


class NodeDead(CrucibleError):  # noqa: N818 - says what happened
    """A call needs a node that does not run, or that ended during the call."""


class NotPossible(CrucibleError):  # noqa: N818 - says what happened
    """This cluster cannot do that, as it was started."""


class RuleNeverFired(AssertionError):  # noqa: N818 - says what happened
    """A rule has not acted, or not often enough, so that the test would prove nothing."""


class DeliveryViolated(AssertionError):  # noqa: N818 - says what happened
    """The records that were read violate the guarantee. The message has the first violation."""


class CrucibleTimeout(CrucibleError, TimeoutError):  # noqa: N818 - a TimeoutError by another name
    """A call timed out. The message names the condition for which it waited."""


class CallerGone(CrucibleError):  # noqa: N818 - says what happened
    """A wait ended early, because the connection of the control API that had requested it was closed."""


def no_attribute(owner: object, name: str, hint: str = "") -> AttributeError:
    """Return the error for a name that an object lacks, with a hint, or else with the nearest name that it has."""
    if not hint:
        close = get_close_matches(name, [each for each in dir(type(owner)) if not each.startswith("_")], 1)
        hint = f"did you mean {close[0]}?" if close else ""
    text = f"{type(owner).__name__} has no attribute {name!r}"
    return AttributeError(f"{text}: {hint}" if hint else text, name=name, obj=owner)
