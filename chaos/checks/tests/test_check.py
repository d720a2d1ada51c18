"""Declarations of what checks subscribe to."""

from typing import TYPE_CHECKING

import pytest

from chaos.checks.check import (
    MAX_VIOLATIONS,
    Check,
    Inspection,
    OffsetsCheck,
    ProducerCheck,
    QuorumCheck,
    ReplicaCheck,
    SegmentCheck,
    StateCheck,
)
from chaos.checks.metadata.metadata_epoch import NonmonotonicMetadataEpoch
from chaos.checks.suite import all_checks, check_kinds
from chaos.checks.tests.check_context import check_context

if TYPE_CHECKING:
    pass


@pytest.mark.parametrize("kind", check_kinds(), ids=lambda kind: kind.__name__)
def test_class_declares_exactly_the_methods_that_it_has(kind: type[Check]) -> None:
    declared = {
        "trace": bool(kind.rows),
        "acted": bool(kind.acts_on),
        "inspect": kind.inspection is not Inspection.NEVER,
    }
    assert declared == {method: getattr(kind, method) is not getattr(Check, method) for method in declared}


@pytest.mark.parametrize(
    ("base", "view"),
    [
        (QuorumCheck, "quorum"),
        (ReplicaCheck, "replicas"),
        (ProducerCheck, "producers"),
        (StateCheck, "transactions"),
        (OffsetsCheck, "offsets"),
        (SegmentCheck, "segments"),
    ],
)
def test_check_subscribes_with_each_method_that_is_named_like_a_list_of_its_view(base: type[Check], view: str) -> None:
    context = check_context()
    checks = [check for check in all_checks(context) if isinstance(check, base)]
    subscribed = {name: methods for name, methods in vars(getattr(context, view)).items() if name.startswith("on_")}
    for name, methods in subscribed.items():
        expected = [getattr(check, name[3:]) for check in checks if hasattr(check, name[3:])]
        assert expected
        assert [method for method in expected if method not in methods] == []


def test_check_keeps_its_earliest_violations() -> None:
    check = NonmonotonicMetadataEpoch(check_context())
    for at_us in (*range(MAX_VIOLATIONS, 0, -1), MAX_VIOLATIONS + 1):
        check.violated(at_us, "")
    assert [violation.at_us for violation in check.violations] == [*range(1, MAX_VIOLATIONS + 1)]
