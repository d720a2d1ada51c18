"""Makes the behaviours of a fleet from its spec. Both worlds call ``make_fleet``, so they play the same ones."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from bench.fleet.batch_reader import BatchReader
from bench.fleet.behaviours.admin import Admin
from bench.fleet.behaviours.final_reads import FinalReader, FinalReadPlan, OffsetsReader, target_reader, without_ends
from bench.fleet.behaviours.group_member import GroupMember
from bench.fleet.behaviours.hanging_transactions import Janitor, StrayProducer
from bench.fleet.behaviours.member_storage import OutsideStore
from bench.fleet.behaviours.metadata_reader import FinalDescriber, MetadataReader
from bench.fleet.behaviours.mirror import Mirror
from bench.fleet.behaviours.preparer import NewTopic, TopicPreparer, seeder
from bench.fleet.behaviours.producers import KeyedProducer
from bench.fleet.behaviours.protocol import Behaviour, ClientSettings
from bench.fleet.behaviours.session_fetcher import SessionFetcher
from bench.fleet.behaviours.transactional_client import TransactionalWriter
from bench.fleet.behaviours.transactional_worker import Worker
from bench.fleet.plans import (
    admin_plans,
    committing_groups,
    dealt,
    fetcher_plans,
    janitor_plans,
    member_plans,
    metadata_reader_plans,
    mirror_plans,
    producer_plans,
    stray_plans,
    worker_plans,
    writer_plans,
)
from bench.fleet.spec import FleetSpec, address_of, settings_of

REPLICAS_OF_TARGET = 1
"""The second cluster has one node."""
STAGES = ("writers", "workers", "readers")
"""The stages of the end of a load."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """All behaviours of a run. One that has nothing to do is None. They run in this order:

    1. ``preparer``, and ``target_preparer`` for the cluster that a mirror copies to.
    2. ``seeder``.
    3. ``load``: the clients of all ``stages`` together. Those of a stage get Stopping when the stage before has
      finished.
    4. ``final_reader``, ``committed_reader``, ``offsets_reader``, ``target_reader`` and ``final_describer``.
    """

    preparer: TopicPreparer
    seeder: KeyedProducer | None
    fetchers: tuple[SessionFetcher, ...]
    producers: tuple[KeyedProducer, ...]
    final_reader: FinalReader
    admins: tuple[Admin, ...] = ()
    metadata_readers: tuple[MetadataReader, ...] = ()
    final_describer: FinalDescriber | None = None
    members: tuple[GroupMember, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    target_preparer: TopicPreparer | None = None
    target_reader: FinalReader | None = None
    transactional: tuple[TransactionalWriter, ...] = ()
    workers: tuple[Worker, ...] = ()
    strays: tuple[StrayProducer, ...] = ()
    janitors: tuple[Janitor, ...] = ()
    committed_reader: FinalReader | None = None
    offsets_reader: OffsetsReader | None = None

    @property
    def writers(self) -> tuple[Behaviour, ...]:
        return (*self.producers, *self.transactional, *self.admins, *self.strays, *self.janitors)

    @property
    def readers(self) -> tuple[Behaviour, ...]:
        return (*self.fetchers, *self.members, *self.mirrors, *self.metadata_readers)

    @property
    def stages(self) -> dict[str, tuple[Behaviour, ...]]:
        """The clients of the load by stage, in the order in which the stages end: workers read what writers wrote, and
        readers read what both wrote."""
        return dict(zip(STAGES, (self.writers, self.workers, self.readers), strict=True))

    @property
    def last_readers(self) -> tuple[FinalReader | OffsetsReader, ...]:
        """The readers of all logs and of committed offsets once all is quiet, in their order."""
        readers = (self.final_reader, self.committed_reader, self.offsets_reader, self.target_reader)
        return tuple(reader for reader in readers if reader is not None)

    @property
    def load(self) -> tuple[Behaviour, ...]:
        return (*self.writers, *self.workers, *self.readers)


def make_fleet(spec: FleetSpec, share: tuple[int, int] = (0, 1)) -> Fleet:
    """Make the fleet, or the share of one worker. ``share`` (k, n) takes each n-th client of a kind, from the k-th on.
    Names do not depend on it."""
    return _Maker(spec, share).fleet()


class _Maker:
    """Makes the clients of one worker, which all read batches through one reader."""

    def __init__(self, spec: FleetSpec, share: tuple[int, int]) -> None:
        self._spec = spec
        self._share = share
        self._settings = settings_of(spec)
        self._reader = BatchReader()

    def fleet(self) -> Fleet:
        spec, settings, reader = self._spec, self._settings, self._reader
        first, step = self._share
        return Fleet(
            preparer=self._preparer(),
            seeder=self._seeder(),
            fetchers=tuple(
                SessionFetcher(plan, settings, self._random(plan.process), reader)
                for plan in list(fetcher_plans(spec))[first::step]
            ),
            producers=tuple(
                KeyedProducer(plan, settings, self._random(plan.process))
                for plan in list(producer_plans(spec))[first::step]
            ),
            final_reader=self._final_reader(),
            admins=tuple(
                Admin(plan, settings, self._random(plan.process)) for plan in list(admin_plans(spec))[first::step]
            ),
            metadata_readers=tuple(
                MetadataReader(plan, settings, self._random(plan.process))
                for plan in list(metadata_reader_plans(spec))[first::step]
            ),
            final_describer=self._final_describer(),
            members=tuple(self._members()),
            mirrors=tuple(
                Mirror(plan, settings, self._random(plan.member.process))
                for plan in list(mirror_plans(spec, self._target_settings()))[first::step]
            ),
            transactional=tuple(
                TransactionalWriter(plan, settings, self._random(plan.habits.process))
                for plan in list(writer_plans(spec))[first::step]
            ),
            workers=tuple(
                Worker(plan, settings, self._random(plan.member.process))
                for plan in list(worker_plans(spec))[first::step]
            ),
            strays=tuple(
                StrayProducer(plan, settings, self._random(plan.process))
                for plan in list(stray_plans(spec))[first::step]
            ),
            janitors=tuple(
                Janitor(plan, settings, self._random(plan.process)) for plan in list(janitor_plans(spec))[first::step]
            ),
            committed_reader=self._committed_reader(),
            offsets_reader=self._offsets_reader(),
            target_preparer=self._target_preparer(),
            target_reader=self._target_reader(),
        )

    def _random(self, process: str) -> Random:
        """Return a generator for one process. An added process thus changes the choices of no other."""
        return Random(f"{self._spec.seed}:{process}")

    def _named(self, name: str) -> str:
        return f"{self._spec.process_prefix}{name}"

    def _members(self) -> Iterator[GroupMember]:
        stores: dict[str, OutsideStore] = {}
        for plan in dealt(list(member_plans(self._spec)), self._share):
            store = stores.setdefault(plan.store, OutsideStore())
            yield GroupMember(plan, self._settings, self._random(plan.process), store)

    def _preparer(self) -> TopicPreparer:
        """Give the topic of the idle partitions the settings of the first topic."""
        spec, name = self._spec, self._named("preparer")
        topics = [
            NewTopic(f"{spec.topic_prefix}{topic.name}", topic.partitions, topic.replicas, dict(topic.config))
            for topic in spec.load.topics
        ]
        if spec.idle_partitions:
            topics.append(replace(topics[0], name=spec.idle_topic, partitions=len(spec.idle_partitions)))
        return TopicPreparer(name, self._settings, self._random(name), topics)

    def _seeder(self) -> KeyedProducer | None:
        name, idle = self._named("seeder"), self._spec.idle_partitions
        return seeder(name, self._settings, self._random(name), idle) if idle else None

    def _final_reader(self) -> FinalReader:
        spec, name = self._spec, self._named("final-reader")
        everything = (*spec.load_partitions, *spec.idle_partitions)
        keep = without_ends if spec.load.has_transactions else list
        plan = FinalReadPlan(name, everything, spec.final_read_ms * 1000, keep=keep)
        return FinalReader(plan, self._settings, self._random(name), self._reader)

    def _committed_reader(self) -> FinalReader | None:
        """With transactions the logs are read once more, as readers with read_committed see them."""
        spec, name = self._spec, self._named("committed-reader")
        if not spec.load.has_transactions:
            return None
        everything = (*spec.load_partitions, *spec.idle_partitions)
        plan = FinalReadPlan(name, everything, spec.final_read_ms * 1000, read_committed=True)
        return FinalReader(plan, self._settings, self._random(name), self._reader)

    def _offsets_reader(self) -> OffsetsReader | None:
        spec, name = self._spec, self._named("offsets-reader")
        groups = committing_groups(spec)
        if not groups:
            return None
        return OffsetsReader(name, self._settings, self._random(name), groups, spec.final_read_ms * 1000)

    def _final_describer(self) -> FinalDescriber | None:
        spec, name = self._spec, self._named("final-describer")
        if not spec.load.admins and not spec.load.metadata_readers:
            return None
        nodes, limit_us = len(spec.bootstrap), spec.final_read_ms * 1000
        return FinalDescriber(name, spec.made_topic, self._settings, self._random(name), nodes, limit_us)

    def _target_settings(self) -> ClientSettings:
        """Return the settings for clients of the cluster that a mirror copies to."""
        bootstrap = tuple(address_of(each) for each in self._spec.target)
        return replace(self._settings, bootstrap=bootstrap, dial={})

    def _target_preparer(self) -> TopicPreparer | None:
        spec, name = self._spec, self._named("target-preparer")
        if spec.load.mirror is None:
            return None
        copied = spec.partitions_of(spec.load.mirror.topic)
        topics = [NewTopic(copied[0].topic, len(copied), REPLICAS_OF_TARGET)]
        return TopicPreparer(name, self._target_settings(), self._random(name), topics)

    def _target_reader(self) -> FinalReader | None:
        spec, name = self._spec, self._named("target-reader")
        if spec.load.mirror is None:
            return None
        copied, limit_us = spec.partitions_of(spec.load.mirror.topic), spec.final_read_ms * 1000
        return target_reader(name, self._target_settings(), self._random(name), copied, limit_us)
