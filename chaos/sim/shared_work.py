"""Codes the records of the metadata log once for all nodes of a simulated cluster.

Only pure functions between bytes and frozen values are shared, so it does not matter which node made a value. The
key is all that a function is given: a node whose bytes differ gets a result of its own. Live nodes share nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from reference_broker.controller import operations, reign
from reference_broker.metadata import loader
from reference_broker.metadata.snapshots import writer
from reference_broker.quorum import metadata_log

REMEMBERED = 4096

_ALIKE: tuple[tuple[Any, str], ...] = (
    (metadata_log, "read_batch"),
    (loader, "decoded"),
    (reign, "encode"),
    (operations, "encode"),
    (writer, "encode"),
    (writer, "data_batch"),
)
"""The places at which each shared function is replaced: module and name."""


@contextmanager
def shared_coding() -> Iterator[None]:
    """Inside the block nothing is decoded or encoded twice. A mutant's codec stays in place, and its results are what
    is remembered."""
    own = [getattr(module, name) for module, name in _ALIKE]
    once = {each: lru_cache(REMEMBERED)(each) for each in own}
    for (module, name), each in zip(_ALIKE, own, strict=True):
        setattr(module, name, once[each])
    try:
        yield
    finally:
        for (module, name), each in zip(_ALIKE, own, strict=True):
            setattr(module, name, each)
