"""Speedups that change no trace: records coded once for all nodes, and values that are not frozen.

``shared_coding`` codes the records of the metadata log once for all nodes of a simulated cluster. Only pure functions
between bytes and frozen values are shared, so it does not matter which node made a value. The key consists of all
arguments of a function: a node whose bytes differ gets a different result. Live nodes share nothing.

``plain_values`` is for searches over many seeds. A frozen dataclass sets each field by a call of
``object.__setattr__``, which takes a tenth of a search's time. Inside the block the same classes set their fields as
other classes do, and nothing rejects a later assignment. That hides no defect: mypy rejects each assignment to a field
of a frozen class, and in tests, live runs and plays of single seeds the values are frozen.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, field, fields, make_dataclass
from functools import cache, lru_cache
from typing import Any

from reference_broker.controller import controller_term, record_batches
from reference_broker.metadata import loader, snapshots
from reference_broker.quorum import metadata_log

REMEMBERED = 4096

_ALIKE: tuple[tuple[Any, str], ...] = (
    (metadata_log, "read_batch"),
    (loader, "decoded"),
    (controller_term, "encode"),
    (record_batches, "encode"),
    (snapshots, "encode"),
    (snapshots, "data_batch"),
)
"""The places at which each shared function is replaced: module and name."""


@contextmanager
def shared_coding() -> Iterator[None]:
    """Inside the block nothing is decoded or encoded twice. A mutant's codec remains in place, and its results are
    cached."""
    own = [getattr(module, name) for module, name in _ALIKE]
    once = {function: lru_cache(REMEMBERED)(function) for function in own}
    for (module, name), function in zip(_ALIKE, own, strict=True):
        setattr(module, name, once[function])
    try:
        yield
    finally:
        for (module, name), function in zip(_ALIKE, own, strict=True):
            setattr(module, name, function)


ROOMS = ("bench.", "chaos.", "kio.", "reference_broker.", "reports.", "scenarios.")
"""Packages that define the values of a run. ``kio`` holds the messages of Kafka's schemas."""
FROZEN = ("__setattr__", "__delattr__")
"""The methods with which a frozen class refuses changes."""


@contextmanager
def plain_values() -> Iterator[None]:
    """Inside the block the frozen dataclasses that are loaded now are not frozen."""
    methods_by_kind = [(kind, {name: vars(kind)[name] for name in ("__init__", *FROZEN)}) for kind in _frozen()]
    inits = [_plain_init(kind) for kind, _ in methods_by_kind]
    for (kind, _), init in zip(methods_by_kind, inits, strict=True):
        kind.__init__ = init
        for name in FROZEN:
            delattr(kind, name)
    try:
        yield
    finally:
        for kind, methods in methods_by_kind:
            for name, method in methods.items():
                setattr(kind, name, method)


def _frozen() -> list[Any]:
    modules = [module for name, module in sys.modules.items() if name.startswith(ROOMS)]
    classes = dict.fromkeys(value for module in modules for value in vars(module).values() if isinstance(value, type))
    return [kind for kind in classes if {"__dataclass_fields__", "__init__", *FROZEN} <= vars(kind).keys()]


@cache
def _plain_init(kind: Any) -> Callable[..., None]:
    """Return the ``__init__`` that the class would have if it were not frozen."""
    namespace = {"__post_init__": kind.__post_init__} if hasattr(kind, "__post_init__") else {}
    alike = [(member.name, member.type, _alike(member)) for member in fields(kind)]
    init: Callable[..., None] = vars(make_dataclass(kind.__name__, alike, namespace=namespace))["__init__"]
    return init


def _alike(known: Field[Any]) -> Any:
    options: dict[str, Any] = {"init": known.init, "kw_only": known.kw_only}
    if known.default is not MISSING:
        options["default"] = known.default
    if known.default_factory is not MISSING:
        options["default_factory"] = known.default_factory
    return field(**options)
