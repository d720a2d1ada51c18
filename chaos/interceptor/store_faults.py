"""Faults at the calls of a node to the object store, and at their results."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from chaos.interceptor.actions import FaultActions
from chaos.interceptor.rules import Rule, RuleBook, matches_operation
from reference_broker.core.events import Event, StoreCall, StoreDone, StoreFailed
from reference_broker.ports.store import (
    Delete,
    FailureKind,
    Get,
    ListObjects,
    Put,
    PutFile,
    StoredObject,
    StoreFailure,
    StoreOperation,
)

_NAMES: Final[dict[type, str]] = {Put: "put", PutFile: "put", Get: "get", ListObjects: "list", Delete: "delete"}
"""The names of ``vocabulary.STORE_OPERATIONS``."""


class StoreFaults:
    """Applies the rules for calls that leave the node (``store``), and for results (``store_result``)."""

    def __init__(self, book: RuleBook, actions: FaultActions) -> None:
        self._book = book
        self._actions = actions
        self._called: dict[int, StoreOperation] = {}
        self._injected: list[Event] = []
        """Results that were held back or made by a rule. No rule hits them a second time."""
        self._put_at_us: dict[str, int] = {}
        self.has_rules = book.has_rules_at("store", "store_result")

    def takes(self, call: StoreCall) -> bool:
        """Return whether a rule refuses the call, so that the store does not get it."""
        operation = call.operation
        self._called[call.token] = operation
        firing = self._book.first_hit("store", "", _matches(operation))
        if firing is None:
            return False
        rule, hit = firing
        self._book.report(rule, hit, detail=_described(operation))
        if rule.kind != "store_refused":
            self._book.inject_at_node(rule)
            return False
        del self._called[call.token]
        failure = StoreFailure(FailureKind(rule.failure), f"injected by {rule.name}")
        self._deliver_later(StoreFailed(call.token, failure), rule)
        return True

    def arrived(self, event: StoreDone | StoreFailed) -> Sequence[Event]:
        """Return the events that the node gets now."""
        if any(event is injected for injected in self._injected):
            self._injected = [injected for injected in self._injected if injected is not event]
            return (event,)
        operation = self._called.pop(event.token)
        if isinstance(event, StoreDone) and isinstance(operation, Put | PutFile):
            self._put_at_us[operation.key] = self._book.now_us
        firing = self._book.first_hit("store_result", "", _matches(operation), partial(self._offers, event))
        return (event,) if firing is None else self._inject(*firing, event, operation)

    def _offers(self, event: StoreDone | StoreFailed, rule: Rule) -> bool:
        if rule.kind == "store_result_lost":
            return isinstance(event, StoreDone)
        return rule.kind != "store_listed_late" or len(self._seen(event, rule)) < len(_listed(event))

    def _inject(
        self, rule: Rule, hit: int, event: StoreDone | StoreFailed, operation: StoreOperation
    ) -> Sequence[Event]:
        self._book.report(rule, hit, detail=_described(operation))
        if rule.kind == "store_slowed":
            self._deliver_later(event, rule)
            return ()
        if rule.kind == "store_result_lost":
            lost = StoreFailure(FailureKind.UNAVAILABLE, f"no response (injected by {rule.name})")
            self._deliver_later(StoreFailed(event.token, lost), rule)
            return ()
        if rule.kind == "store_listed_late":
            return (StoreDone(event.token, self._seen(event, rule)),)
        self._book.inject_at_node(rule)
        return (event,)

    def _seen(self, event: StoreDone | StoreFailed, rule: Rule) -> tuple[StoredObject, ...]:
        """Return the listed objects without those that this node put less than the rule's delay ago."""
        since_us = self._book.now_us - rule.delay_ms.low * 1000
        late = {key for key, at_us in self._put_at_us.items() if at_us > since_us}
        return tuple(listed for listed in _listed(event) if listed.key not in late)

    def _deliver_later(self, event: StoreDone | StoreFailed, rule: Rule) -> None:
        self._injected.append(event)
        self._actions.deliver_later(event, self._book.delay_us(rule))


def _matches(operation: StoreOperation) -> partial[bool]:
    keys = operation.keys if isinstance(operation, Delete) else (operation[0],)
    return partial(matches_operation, names=(_NAMES[type(operation)],), paths=keys)


def _listed(event: StoreDone | StoreFailed) -> tuple[StoredObject, ...]:
    return event.result if isinstance(event, StoreDone) and isinstance(event.result, tuple) else ()


def _described(operation: StoreOperation) -> str:
    first = operation.keys[0] if isinstance(operation, Delete) and operation.keys else operation[0]
    return f"{_NAMES[type(operation)]} {first}"
