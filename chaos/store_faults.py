"""Faults at calls of the object store and at their answers, as the node sees them. They are the same in both worlds."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from chaos.powers import Powers
from chaos.rule_book import RuleBook
from chaos.rules import Rule, matches_operation
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
    """What the interceptor asks about each call that leaves the node, and about each answer that reaches it."""

    def __init__(self, book: RuleBook, powers: Powers) -> None:
        self._book = book
        self._powers = powers
        self._asked: dict[int, StoreOperation] = {}
        self._struck: list[Event] = []
        """Answers that come once more, or that a rule has made. No rule strikes them again."""
        self._put_at_us: dict[str, int] = {}
        self.looks = book.looks_at("store", "store_answer")

    def takes(self, call: StoreCall) -> bool:
        """Returns whether a rule takes the call away, so that the store does not hear of it."""
        operation = call.operation
        self._asked[call.token] = operation
        for rule, hit in self._book.hits("store", "", _matches(operation)):
            self._book.report(rule, hit, detail=_story(operation))
            if rule.kind != "store_refused":
                self._book.strike_node(rule)
                return False
            del self._asked[call.token]
            failure = StoreFailure(FailureKind(rule.failure), f"injected by {rule.name}")
            self._tell_later(StoreFailed(call.token, failure), rule)
            return True
        return False

    def arrived(self, event: StoreDone | StoreFailed) -> Sequence[Event]:
        """Returns what the node hears now."""
        if any(event is each for each in self._struck):
            self._struck = [each for each in self._struck if each is not event]
            return (event,)
        operation = self._asked.pop(event.token)
        if isinstance(event, StoreDone) and isinstance(operation, Put | PutFile):
            self._put_at_us[operation.key] = self._book.now_us
        for rule, hit in self._book.hits("store_answer", "", _matches(operation), partial(self._offers, event)):
            return self._strike(rule, hit, event, operation)
        return (event,)

    def _offers(self, event: StoreDone | StoreFailed, rule: Rule) -> bool:
        if rule.kind == "store_answer_lost":
            return isinstance(event, StoreDone)
        return rule.kind != "store_listed_late" or len(self._seen(event, rule)) < len(_listed(event))

    def _strike(
        self, rule: Rule, hit: int, event: StoreDone | StoreFailed, operation: StoreOperation
    ) -> Sequence[Event]:
        self._book.report(rule, hit, detail=_story(operation))
        if rule.kind == "store_slowed":
            self._tell_later(event, rule)
            return ()
        if rule.kind == "store_answer_lost":
            lost = StoreFailure(FailureKind.UNAVAILABLE, f"no answer (injected by {rule.name})")
            self._tell_later(StoreFailed(event.token, lost), rule)
            return ()
        if rule.kind == "store_listed_late":
            return (StoreDone(event.token, self._seen(event, rule)),)
        self._book.strike_node(rule)
        return (event,)

    def _seen(self, event: StoreDone | StoreFailed, rule: Rule) -> tuple[StoredObject, ...]:
        """Returns the listed objects without those that this node put less than the rule's delay ago."""
        since_us = self._book.now_us - rule.delay_ms.low * 1000
        late = {key for key, at_us in self._put_at_us.items() if at_us > since_us}
        return tuple(each for each in _listed(event) if each.key not in late)

    def _tell_later(self, event: StoreDone | StoreFailed, rule: Rule) -> None:
        self._struck.append(event)
        self._powers.deliver_later(event, self._book.delay_us(rule))


def _matches(operation: StoreOperation) -> partial[bool]:
    keys = operation.keys if isinstance(operation, Delete) else (operation[0],)
    return partial(matches_operation, names=(_NAMES[type(operation)],), paths=keys)


def _listed(event: StoreDone | StoreFailed) -> tuple[StoredObject, ...]:
    return event.answer if isinstance(event, StoreDone) and isinstance(event.answer, tuple) else ()


def _story(operation: StoreOperation) -> str:
    first = operation.keys[0] if isinstance(operation, Delete) and operation.keys else operation[0]
    return f"{_NAMES[type(operation)]} {first}"
