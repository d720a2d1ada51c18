"""A mutant: the broker or the reference client without one mechanism, made by patching one function from here.

A scenario proves itself by turning its mutants red. A mutant is applied before the first node (or client) is built,
only in the child process, or, in the simulator, inside ``applied``. A target that is not there, or that takes other
parameters than the mutant knows, is an error; a mutant whose replacement was never called makes the run INVALID.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

Side = Literal["node", "client"]


class MutantError(RuntimeError):
    """The mutant does not fit the code any more; the message names target and difference."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutant.

    ``target`` is ``package.module:Class.method`` or ``package.module:function``, and must take ``parameters``.
    ``make`` gets the original function and returns the replacement (same parameters).
    """

    name: str
    what: str
    side: Side
    target: str
    parameters: tuple[str, ...]
    make: Callable[[Callable[..., Any]], Callable[..., Any]]
    clauses: tuple[str, ...] = ()
    revisions: tuple[str, ...] = ("final", "first")
    """of fetch sessions that have the mechanism at all"""


@dataclass(slots=True)
class Applied:
    """A mutant at work. ``calls`` counts those of the replacement so far. ``undo`` puts the original back."""

    mutant: Mutant
    undo: Callable[[], None]
    calls: int = 0
    first_call: list[Callable[[], None]] = field(default_factory=list)


def apply(mutant: Mutant, on_first_call: Callable[[], None] | None = None) -> Applied:
    """Patches the target for good; raises MutantError if it does not fit.

    ``on_first_call`` is called once, before the replacement runs for the first time. So a child process that will be
    killed can leave the evidence that its mutant was reached.
    """
    owner, attribute = _owner(mutant)
    original = inspect.getattr_static(owner, attribute)
    function = original.__func__ if isinstance(original, staticmethod | classmethod) else original
    if not callable(function):
        raise MutantError(f"mutant {mutant.name}: {mutant.target} is not a function")
    found = tuple(inspect.signature(function).parameters)
    if found != mutant.parameters:
        raise MutantError(
            f"mutant {mutant.name}: {mutant.target} takes {found}, the mutant was made for {mutant.parameters}"
        )
    replacement = mutant.make(function)
    applied = Applied(mutant, lambda: setattr(owner, attribute, original))
    if on_first_call is not None:
        applied.first_call.append(on_first_call)

    def counted(*args: Any, **kwargs: Any) -> Any:
        applied.calls += 1
        while applied.first_call:
            applied.first_call.pop()()
        return replacement(*args, **kwargs)

    wrapped: Any = counted
    if isinstance(original, staticmethod | classmethod):
        wrapped = type(original)(counted)
    setattr(owner, attribute, wrapped)
    return applied


@contextmanager
def applied(mutant: Mutant | None) -> Iterator[Applied | None]:
    """The mutant at work inside the block only (None: no mutant)."""
    if mutant is None:
        yield None
        return
    at_work = apply(mutant)
    try:
        yield at_work
    finally:
        at_work.undo()


def _owner(mutant: Mutant) -> tuple[Any, str]:
    module_name, _, path = mutant.target.partition(":")
    *outer, attribute = path.split(".")
    try:
        owner: Any = importlib.import_module(module_name)
        for name in outer:
            owner = getattr(owner, name)
        inspect.getattr_static(owner, attribute)
    except (ImportError, AttributeError) as error:
        raise MutantError(f"mutant {mutant.name}: there is no {mutant.target}: {error}") from error
    return owner, attribute
