"""A mutant fits its target exactly or not at all, counts its calls, and can be taken back."""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias

import pytest

import bench.fleet.behaviours
import reference_broker
from chaos.interceptor.rules import Rule, SharedHitCounter
from chaos.mutants import Mutant, MutantError, all_mutants, applied, apply, by_name, table
from chaos.mutants.wrong_habits import PLAYED, found
from reference_broker.client.group_consumer import ConsumerConfig, GroupConsumer
from reference_broker.client.metadata_cache import MetadataUpdate, NodeAddress
from reference_broker.client.offset_commits import CommittedOffset
from reference_broker.client.partitions import TopicPartition
from scenarios.model import Match

TARGET = "chaos.interceptor.rules:Counter.count_match"
LISTED = table()


def never(original: Callable[..., Any], self: Any, client_id: str, at_us: int) -> bool:  # noqa: ARG001
    assert callable(original)
    return False


def too_few(original: Callable[..., Any], self: Any, client_id: str) -> bool:  # noqa: ARG001
    raise AssertionError("it does not fit")


def mutant(target: str = TARGET, replacement: Callable[..., Any] = never) -> Mutant:
    return Mutant("never_hits", target, replacement)


def hits() -> bool:
    from chaos.interceptor.rules import Counter

    return bool(Counter(Rule("r", "request_dropped", "request", Match()), SharedHitCounter()).count_match("client", 0))


def test_replacement_is_used_inside_the_block_only_and_counted() -> None:
    assert hits()
    with applied(mutant()) as at_work:
        assert at_work is not None
        assert not hits()
        assert not hits()
        assert at_work.calls == 2
    assert hits()


def test_first_call_is_reported_before_the_replacement_runs() -> None:
    seen: list[str] = []
    at_work = apply(mutant(), lambda: seen.append("reached"))
    try:
        assert seen == []
        hits()
        hits()
        assert seen == ["reached"]
    finally:
        at_work.undo()


@pytest.mark.parametrize(
    ("target", "replacement", "word"),
    [
        ("chaos.interceptor.rules:Counter.gone", never, "there is no"),
        ("chaos.nowhere:f", never, "there is no"),
        (TARGET, too_few, "takes"),
        ("chaos.interceptor.rules:Rule.__doc__", never, "not a function"),
    ],
)
def test_target_that_does_not_fit_is_refused(target: str, replacement: Callable[..., Any], word: str) -> None:
    with pytest.raises(MutantError, match=word):
        apply(mutant(target, replacement))
    assert hits()


@pytest.mark.thorough
@pytest.mark.parametrize("each", all_mutants(), ids=lambda each: each.name)
def test_every_mutant_fits_the_code_and_is_listed_by_a_scenario(each: Mutant) -> None:
    with applied(each):
        pass
    assert dict(LISTED)[each.name], "no scenario lists it"


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLAYED)
def test_every_broker_that_the_probe_is_proven_on_fits_the_code(name: str) -> None:
    with applied(found(name)):
        pass


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if "tests" not in each.name.split(".") and not each.name.endswith("__main__"):
            yield importlib.import_module(each.name)


def _functions_in(value: object) -> tuple[object, ...]:
    """The functions behind a name of a module or of a class, also in a table."""
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, partial):
        return (value.func,)
    if isinstance(value, Mapping):
        return tuple(value.values())
    return tuple(value) if isinstance(value, tuple | list) else (value,)


Place: TypeAlias = tuple[Any, str]


@pytest.fixture(scope="module")
def places() -> dict[int, list[Place]]:
    """Return where the broker, its client and the fleet's behaviours hold each function, also one with a cache: (module
    or class, name), by ``id`` of the function."""
    found: dict[int, list[Place]] = {}
    modules = [*_modules(reference_broker), *_modules(bench.fleet.behaviours)]
    for owner in (*modules, *(each for one in modules for each in vars(one).values() if inspect.isclass(each))):
        for name, value in vars(owner).items():
            for function in _functions_in(value):
                if inspect.isfunction(function) or hasattr(function, "cache_info"):
                    found.setdefault(id(function), []).append((owner, name))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("each", all_mutants(), ids=lambda each: each.name)
def test_no_module_binds_name_replaced_by_a_mutant(each: Mutant, places: dict[int, list[Place]]) -> None:
    module, _, path = each.target.partition(":")
    owner: Any = sys.modules[module]
    for name in path.split(".")[:-1]:
        owner = getattr(owner, name)
    target = inspect.getattr_static(owner, path.rpartition(".")[2])
    original = getattr(target, "__func__", target)

    def left() -> list[Place]:
        return [(one, name) for one, name in before if original in _functions_in(vars(one)[name])]

    before = places[id(original)]
    with applied(each):
        kept = left()
    assert bool(kept) == bool(each.one_use), kept
    assert left() == before


def test_module_that_is_imported_under_a_mutant_gets_the_original_back() -> None:
    name = "reference_broker.client.consumer_partitions"
    from reference_broker.client.offset_commits import may_consume

    kept = sys.modules.pop(name)
    try:
        with applied(by_name("no_wait_after_offset_fetch")):
            late = importlib.import_module(name)
            assert late.may_consume is not may_consume
        assert late.may_consume is may_consume
    finally:
        sys.modules[name] = kept


def test_client_mutant_is_installed_in_client_processes() -> None:
    """In the nodes of a live run it would never be reached."""
    of_clients = {each.name for each in all_mutants() if each.target.startswith(("reference_broker.client.", "bench."))}
    assert of_clients == {each.name for each in all_mutants() if each.side == "client"}


def test_scenarios_list_only_mutants_that_exist() -> None:
    from scenarios.loader import load_all

    for scenario in load_all():
        for name in scenario.mutants:
            assert by_name(name).name == name


def test_mutants_of_the_client_change_the_consumer_that_applications_get() -> None:
    where = TopicPartition("t", 0)

    def reached() -> tuple[bool, bool, bool]:
        """Older metadata is taken; a committed epoch is not waited for; nor is one that was stored outside."""
        consumer = GroupConsumer(ConsumerConfig((NodeAddress(-1, "seed", 9),)))
        consumer.assign([where])
        known = MetadataUpdate((NodeAddress(0, "a", 1),), (), metadata_epoch=3)
        consumer.metadata.cache = consumer.metadata.cache.apply(known).apply(replace(known, metadata_epoch=2))
        took = consumer.metadata_epoch() == 2
        consumer.partitions.take_unplaced()
        consumer.partitions.learn_committed({where: CommittedOffset(7, metadata_epoch=9)}, consumer.metadata_epoch())
        return took, consumer.position(where) == 7, consumer.has_reached(9)

    assert reached() == (False, False, False)
    for name, wrong in (
        ("accepts_older_metadata", (True, False, False)),
        ("no_wait_after_offset_fetch", (False, True, False)),
        ("no_wait_before_seek", (False, False, True)),
    ):
        with applied(by_name(name)):
            assert reached() == wrong, name


def test_unknown_mutant_is_refused_with_the_nearest_name_and_the_command_that_lists_them() -> None:
    with pytest.raises(MutantError, match=r"did you mean no_epoch_comparison; \./crucible mutants lists all$"):
        by_name("no_epoch_comparision")


def test_table_lists_scenario_numbers_that_kill_a_mutant() -> None:
    assert ("no_epoch_comparison", ("2",)) in LISTED
