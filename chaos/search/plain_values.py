"""Lets frozen values be made faster while many seeds are played.

A frozen dataclass sets each field by a call of ``object.__setattr__``, which takes a tenth of a search's time. Inside
``plain_values`` the same classes set their fields as other classes do, and nothing refuses a later assignment. That
hides no defect: mypy refuses each assignment to a field of a frozen class. Tests, live runs and single seeds, such as
the one that repeats a failure, play with values that refuse it themselves.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, field, fields, make_dataclass
from functools import cache
from typing import Any

ROOMS = ("bench.", "chaos.", "kio.", "reference_broker.", "reports.", "scenarios.")
"""Where the values of a run are defined. ``kio`` holds the messages of Kafka's schemas."""
FROZEN = ("__setattr__", "__delattr__")
"""The methods with which a frozen class refuses changes."""


@contextmanager
def plain_values() -> Iterator[None]:
    """Inside the block the frozen dataclasses that are loaded now are not frozen."""
    kept = [(each, {name: vars(each)[name] for name in ("__init__", *FROZEN)}) for each in _frozen()]
    inits = [_plain_init(each) for each, _ in kept]
    for (each, _), init in zip(kept, inits, strict=True):
        each.__init__ = init
        for name in FROZEN:
            delattr(each, name)
    try:
        yield
    finally:
        for each, methods in kept:
            for name, method in methods.items():
                setattr(each, name, method)


def _frozen() -> list[Any]:
    modules = [module for name, module in sys.modules.items() if name.startswith(ROOMS)]
    classes = dict.fromkeys(each for module in modules for each in vars(module).values() if isinstance(each, type))
    return [each for each in classes if {"__dataclass_fields__", "__init__", *FROZEN} <= vars(each).keys()]


@cache
def _plain_init(kind: Any) -> Callable[..., None]:
    """Returns the ``__init__`` that the class would have if it were not frozen."""
    namespace = {"__post_init__": kind.__post_init__} if hasattr(kind, "__post_init__") else {}
    alike = [(each.name, each.type, _alike(each)) for each in fields(kind)]
    init: Callable[..., None] = vars(make_dataclass(kind.__name__, alike, namespace=namespace))["__init__"]
    return init


def _alike(known: Field[Any]) -> Any:
    given: dict[str, Any] = {"init": known.init, "kw_only": known.kw_only}
    if known.default is not MISSING:
        given["default"] = known.default
    if known.default_factory is not MISSING:
        given["default_factory"] = known.default_factory
    return field(**given)
