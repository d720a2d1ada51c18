"""Checks arguments against the types of a signature.

A wrong one is refused where the test's author sees it: in a node it would end the node, or be an error without the
argument's name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import Parameter, isfunction, signature
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

ClassT = TypeVar("ClassT", bound=type)
CallT = TypeVar("CallT", bound=Callable[..., Any])

Kind: TypeAlias = tuple[Callable[[object], bool], str]
"""Whether a value is of a kind, and words for what to give."""

PLAIN: Final[Mapping[object, Kind]] = {
    str: (lambda value: isinstance(value, str), "a string"),
    bytes: (lambda value: isinstance(value, bytes | bytearray | memoryview), "bytes"),
    bool: (lambda value: isinstance(value, bool), "True or False"),
    int: (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    float: (lambda value: isinstance(value, int | float) and not isinstance(value, bool), "a number"),
    NoneType: (lambda value: value is None, "None"),
}
MOST: Final = 2**63 - 1
"""Larger numbers fit into no field of a request."""
TEXTS: Final = (str, bytes, bytearray, memoryview)
"""They are sequences, too, and never meant as one."""


def checked(*, besides: Sequence[str] = ()) -> Callable[[ClassT], ClassT]:
    """Check the arguments of all public methods of a class, besides some that have checks of their own."""

    def decorate(of: ClassT) -> ClassT:
        for name, member in list(vars(of).items()):
            if isfunction(member) and (name == "__init__" or not name.startswith("_")) and name not in besides:
                setattr(of, name, checked_call(member))
        return of

    return decorate


def checked_call(function: CallT) -> CallT:
    """Return the function with a check of its arguments. Each call raises TypeError, and ValueError for a number that
    is too large or not finite."""
    parameters = signature(function).parameters.values()
    assert not any(parameter.kind is Parameter.POSITIONAL_ONLY for parameter in parameters), (
        "a keyword may have the same name"
    )
    positional = [parameter.name for parameter in parameters if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD]

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        kinds = _kinds_of(function)
        for name, value in zip(positional, arguments, strict=False):
            _check(name, value, kinds)
        for name, value in named.items():
            _check(name, value, kinds)
        return function(*arguments, **named)

    return call  # type: ignore[return-value]


@cache
def _kinds_of(function: Callable[..., Any]) -> Mapping[str, Kind]:
    """Return the kinds of a function's parameters, at its first call: an annotation may name what is declared later."""
    hints = get_type_hints(function)
    kinds = {name: _kind(hint) for name, hint in hints.items() if name != "return"}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _check(name: str, value: object, kinds: Mapping[str, Kind]) -> None:
    fits, words = kinds.get(name, (None, ""))
    if fits is not None and not fits(value):
        raise TypeError(f"{name} is {value!r}: give {words}.")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{name} is {value}: give a finite number.")
    if isinstance(value, int | float) and abs(value) > MOST:
        raise ValueError(f"{name} is {value}: give at most {MOST}.")


def _kind(hint: Any) -> Kind | None:
    """Return the kind of an annotation, or None for one that is not checked."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _any_of([_kind(part) for part in parts])
    if origin is Literal:
        return lambda value: isinstance(value, str), f"one of {', '.join(map(repr, parts))}"
    if origin is Mapping:
        return _mapping(*map(_kind, parts))
    if origin in (Sequence, Iterable):
        return _several(origin, _kind(parts[0]))
    if isinstance(hint, type) and hint.__module__.startswith("crucible_kafka."):
        return lambda value: isinstance(value, hint), f"a {hint.__name__}"
    return None


def _any_of(kinds: Sequence[Kind | None]) -> Kind | None:
    sure = [kind for kind in kinds if kind is not None]
    if len(sure) < len(kinds):
        return None
    words = [kind[1] for kind in sure]
    shown = f"{', '.join(words[:-1])} or {words[-1]}"
    return lambda value: any(fits(value) for fits, _ in sure), shown


def _mapping(key: Kind | None, value: Kind | None) -> Kind:
    def fits(given: object) -> bool:
        return isinstance(given, Mapping) and all(
            (key is None or key[0](each)) and (value is None or value[0](what)) for each, what in given.items()
        )

    of_values = f" to {_several_words(value[1])}" if value else ""
    return fits, f"a dictionary of strings{of_values}"


def _several(origin: Any, item: Kind | None) -> Kind:
    def fits(given: object) -> bool:
        if not isinstance(given, origin) or isinstance(given, TEXTS):
            return False
        return item is None or origin is Iterable or all(item[0](each) for each in given)  # An iterator has one pass.

    return fits, f"a list of {_several_words(item[1])}" if item else "a list"


def _several_words(words: str) -> str:
    return words.removeprefix("a ") + ("" if words == "bytes" else "s") if " or " not in words else "values"
