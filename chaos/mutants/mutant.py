"""Definition and application of mutants: the broker or the reference client without one mechanism, made by replacing
one function.

A scenario is proven by its mutants, which must fail it. A mutant is applied before the first node (or client) is built:
in a live run in the child process, in the simulator inside ``applied``. It is an error if the target does not exist or
has other parameters than the replacement. If the replacement is never called, the run is INVALID.

A function is replaced in every module of the broker and of the fleet that has imported it, because the mutant must lack
its mechanism in the code that users get. The code that judges a run (``chaos``, ``reports``) keeps the original.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

Function: TypeAlias = Callable[..., Any]
Side = Literal["node", "client"]
_CLAUSE = re.compile(r"\b[DFGSHTPMXE]-\d+\b")
BOTH_REVISIONS = ("final", "first")
PATCHED = ("reference_broker", "bench")
"""The packages in which a function is replaced wherever it was imported."""


class MutantError(RuntimeError):
    """The mutant does not fit the code any more. The message names the target and the difference."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutant: a target, and the function that is called instead of it."""

    name: str
    target: str
    """``package.module:Class.method`` or ``package.module:function``"""
    replacement: Function
    """its first parameter is the original function, and the others are those of the target"""
    side: Side = "node"
    revisions: tuple[str, ...] = BOTH_REVISIONS
    """those of fetch sessions that have the mechanism at all"""
    remembers: bool = False
    """whether the second parameter of the replacement is a dictionary, which is empty when the mutant is applied"""
    one_use: str = ""
    """why a function is replaced in the target's module only; empty if it is replaced wherever it was imported"""
    partner: "Mutant | None" = None
    """other half of a mutant that must replace two functions, such as one that writes and one that reads"""

    @property
    def clauses(self) -> tuple[str, ...]:
        """The clauses that the mutant violates, as the replacement's docstring names them."""
        return tuple(_CLAUSE.findall(self.replacement.__doc__ or ""))


def mutant(
    target: str,
    *,
    side: Side = "node",
    revisions: tuple[str, ...] = BOTH_REVISIONS,
    remembers: bool = False,
    one_use: str = "",
    partner: Mutant | None = None,
) -> Callable[[Function], Mutant]:
    """Make a mutant of the replacement below it. The mutant has the replacement's name."""
    return lambda replacement: Mutant(
        replacement.__name__, target, replacement, side, revisions, remembers, one_use, partner
    )


@dataclass(slots=True)
class Applied:
    """An applied mutant."""

    mutant: Mutant
    undo: Callable[[], None]
    """Restores the original."""
    calls: int = 0
    """Number of calls of the replacement."""


def apply(mutant: Mutant, on_first_call: Callable[[], None] | None = None) -> Applied:
    """Replace the target until ``undo`` is called. Raise MutantError if the target does not fit.

    ``on_first_call`` is called once, before the replacement runs for the first time. With it a child process that will
    be killed leaves the evidence that its mutant was reached.
    """
    owner, attribute = _owner(mutant)
    original = inspect.getattr_static(owner, attribute)
    function = original.__func__ if isinstance(original, staticmethod | classmethod) else original
    if not callable(function):
        raise MutantError(f"mutant {mutant.name}: {mutant.target} is not a function")
    replacement = partial(mutant.replacement, function, *([{}] if mutant.remembers else []))
    found, wanted = tuple(inspect.signature(function).parameters), tuple(inspect.signature(replacement).parameters)
    if found != wanted:
        raise MutantError(f"mutant {mutant.name}: {mutant.target} takes {found}, the mutant was made for {wanted}")
    applied = Applied(mutant, lambda: put_back())

    def counted(*args: Any, **kwargs: Any) -> Any:
        applied.calls += 1
        if applied.calls == 1 and on_first_call is not None:
            on_first_call()
        return replacement(*args, **kwargs)

    wrapped: Any = counted
    if isinstance(original, staticmethod | classmethod):
        wrapped = type(original)(counted)
    setattr(owner, attribute, wrapped)
    everywhere = inspect.ismodule(owner) and not mutant.one_use
    if everywhere:
        _replace_everywhere(original, wrapped)

    partner = None if mutant.partner is None else apply(mutant.partner)

    def put_back() -> None:
        """Restore the original also in modules that were imported meanwhile."""
        if partner is not None:
            partner.undo()
        setattr(owner, attribute, original)
        if everywhere:
            _replace_everywhere(wrapped, original)

    return applied


def _replace_everywhere(old: object, new: object) -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PATCHED:
            for attribute in [each for each, value in vars(module).items() if value is old]:
                setattr(module, attribute, new)


@contextmanager
def applied(mutant: Mutant | None) -> Iterator[Applied | None]:
    """Apply the mutant inside the block only. None means no mutant."""
    if mutant is None:
        yield None
        return
    in_place = apply(mutant)
    try:
        yield in_place
    finally:
        in_place.undo()


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
