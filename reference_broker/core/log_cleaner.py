"""Decides which log is cleaned when (Kafka's LogCleaner and LogCleanerManager with one thread).

The dirtiest log that is due comes first. Logs are cleaned one at a time. ``log.cleaner`` does the cleaning.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from reference_broker.apis.broker import Broker
from reference_broker.log.cleaner.cleaning import Cleaned, Cleaning, CleaningFailed, Overtaken, Step, Steps, cleanable
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.image import EMPTY_IMAGE, TOPIC_RESOURCE, MetadataImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.slicing import CLEANED_TOPICS_PER_SLICE, HOUSEKEPT_PARTITIONS_PER_SLICE, Sliced, run_slices
from reference_broker.records.batch import InvalidRecords

Key = tuple[bytes, int]
"""A partition: topic ID and index."""


@dataclass(slots=True)
class CompactedTopics:
    """The names of compacted topics, kept up to date with the image, so that other topics cost the cleaner nothing."""

    default_policy: str
    image: MetadataImage = EMPTY_IMAGE
    names: dict[str, None] = field(default_factory=dict)

    def image_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """A listener of the loader."""
        self.image = image
        for change in delta.topics:
            topic = change.after or change.before
            if topic is not None:
                self._check(topic.name)
        for kind, name in delta.configs:
            if kind == TOPIC_RESOURCE:
                self._check(name)

    def default_changed(self, policy: str) -> Sliced[None]:
        """Apply another policy to the topics that set none. A later change during this walk applies to the rest, and
        its own walk checks all topics again."""
        if policy != self.default_policy:
            self.default_policy = policy
            for number, name in enumerate(list(self.image.topics), 1):
                self._check(name)
                if number % CLEANED_TOPICS_PER_SLICE == 0:
                    yield

    def _check(self, name: str) -> None:
        policy = self.image.topic_configs(name).get("cleanup.policy", self.default_policy)
        if name in self.image.topics and "compact" in policy.split(","):
            self.names[name] = None
        else:
            self.names.pop(name, None)

    def partitions(self, node_id: int) -> Iterator[Key]:
        """Yield the partitions with a replica on this node. Topics may come and go during the walk."""
        for name in list(self.names):
            topic = self.image.topics.get(name)
            if topic is not None:
                for index, state in enumerate(topic.partitions):
                    if node_id in state.replicas:
                        yield topic.topic_id, index


class CleanerMetrics:
    """Kafka's gauges. Their names have the unit: percent, milliseconds or seconds."""

    def __init__(self, metrics: Metrics) -> None:
        cleaner = partial(metrics.gauge, "kafka.log", "LogCleaner")
        self.recopy_percent = cleaner("cleaner-recopy-percent")
        self.max_buffer_utilization_percent = cleaner("max-buffer-utilization-percent")
        self.max_clean_time_secs = cleaner("max-clean-time-secs")
        manager = partial(metrics.gauge, "kafka.log", "LogCleanerManager")
        self.uncleanable_partitions_count = manager("uncleanable-partitions-count")
        self.max_dirty_percent = manager("max-dirty-percent")
        self.time_since_last_run_ms = manager("time-since-last-run-ms")


@dataclass(slots=True)
class _Job:
    key: Key
    log: UnifiedLog
    cleaning: Cleaning
    steps: Steps
    began_us: int
    ended: Callable[[str], None] | None = None
    """For a pass that was requested: called once, with why it was given up, or with an empty string."""


@dataclass(slots=True)
class LogCleaner:
    """Cleans the dirtiest compacted log that is due, one at a time."""

    broker: Broker
    log_of: Callable[[Key], UnifiedLog | None]
    """Returns the log of this node's replica, or None once it has none."""
    topics: CompactedTopics = field(init=False)
    metrics: CleanerMetrics = field(init=False)
    halted: bool = False
    """Whether no pass begins or finishes any more."""
    uncleanable: dict[Key, UnifiedLog] = field(default_factory=dict)
    """Damaged logs, which are skipped until the next start."""
    set_back: dict[Key, UnifiedLog] = field(default_factory=dict)
    """Logs whose last pass failed or was abandoned, the oldest first. Other logs that are due come before them."""
    _job: _Job | None = None
    _best: tuple[Key, UnifiedLog] | None = None
    _best_rank: tuple[int, int] = (0, 0)
    _last_run_us: int = 0

    def __post_init__(self) -> None:
        self.topics = CompactedTopics(self.broker.config.log_cleanup_policy)
        self.metrics = CleanerMetrics(self.broker.metrics)

    def start(self) -> None:
        """Clean from now on, unless ``log.cleaner.enable`` is false."""
        if self.broker.config.log_cleaner_enable:
            self._last_run_us = self.broker.now.mono_us
            self._pause()

    def _pause(self) -> None:
        now_us = self.broker.now.mono_us
        self.metrics.time_since_last_run_ms.value = (now_us - self._last_run_us) // 1000
        self.broker.ports.set_timer(now_us + self.broker.config.log_cleaner_backoff_ms * 1000, self._find_dirtiest)

    def clean_now(self, key: Key, ended: Callable[[str], None]) -> None:
        """Clean a log now, however little of it is dirty. ``ended`` is called once, with the reason if it was not
        cleaned, or with an empty string."""
        log = self.log_of(key)
        part = None if log is None else cleanable(log, self.broker.now)
        if log is None or part is None:
            ended("")
        elif self._job is not None:
            ended("another log is being cleaned")
        else:
            now = self.broker.now
            cleaning = Cleaning(log, part, now, self.broker.config.log_cleaner_dedupe_buffer_size)
            self._job = _Job(key, log, cleaning, cleaning.run(), now.mono_us, ended)
            self._go_on()

    def _find_dirtiest(self) -> None:
        if self._job is not None:  # One that was requested.
            self._pause()
            return
        self._best = None
        self._forget_gone(self.uncleanable)
        self._forget_gone(self.set_back)
        self.metrics.uncleanable_partitions_count.value = len(self.uncleanable)
        self.metrics.max_dirty_percent.value = 0
        run_slices(self.broker.ports, self._choose(), self._chosen)

    def _forget_gone(self, logs: dict[Key, UnifiedLog]) -> None:
        """Remove logs that are gone. There are few: those that failed."""
        for key in [key for key, log in logs.items() if self.log_of(key) is not log]:
            del logs[key]

    def _choose(self) -> Sliced[None]:
        for number, key in enumerate(self.topics.partitions(self.broker.node_id), 1):
            log = self.log_of(key)
            if log is not None and key not in self.uncleanable:
                self._consider(key, log)
            if number % HOUSEKEPT_PARTITIONS_PER_SLICE == 0:
                yield

    def _consider(self, key: Key, log: UnifiedLog) -> None:
        part = cleanable(log, self.broker.now)
        if part is None:
            return
        percent = self.metrics.max_dirty_percent
        percent.value = max(percent.value, part.dirty_percent)
        if not part.is_due(log.config.min_cleanable_dirty_ratio):
            return
        waits = len(self.set_back) - list(self.set_back).index(key) if key in self.set_back else len(self.set_back) + 1
        rank = waits, part.dirty_percent
        if self._best is None or rank > self._best_rank:
            self._best, self._best_rank = (key, log), rank

    def _chosen(self) -> None:
        if self._best is None or self.halted or self._job is not None:
            self._pause()
            return
        key, log = self._best
        part = cleanable(log, self.broker.now)  # The search took several events.
        if part is None or self.log_of(key) is not log:
            self._pause()
            return
        now = self.broker.now
        cleaning = Cleaning(log, part, now, self.broker.config.log_cleaner_dedupe_buffer_size)
        self._job = _Job(key, log, cleaning, cleaning.run(), now.mono_us)
        self._go_on()

    def _go_on(self) -> None:
        job = self._job
        if job is None or self.halted:
            return
        # Decision log-cleaning-replica-gone
        if self.log_of(job.key) is not job.log:  # The topic is deleted, or the replica is on another node now.
            self._end("given_up", "the replica is gone")
            return
        if not job.log.config.is_compacted:
            job.cleaning.give_up()
            self._end("given_up", "the topic is compacted no more")
            return
        try:
            step = next(job.steps)
        except StopIteration:
            self._cleaned(job)
        except Overtaken as why:
            self._end("given_up", str(why))
        except CleaningFailed as failure:
            self._end("failed", str(failure))
        except InvalidRecords as damage:
            self.uncleanable[job.key] = job.log
            self.metrics.uncleanable_partitions_count.value = len(self.uncleanable)
            self._end("uncleanable", damage.message)
        else:
            self._wait(step)

    def _wait(self, step: Step) -> None:
        """Wait until the bytes read and written fit ``log.cleaner.io.max.bytes.per.second``."""
        rate = self.broker.config.log_cleaner_io_max_bytes_per_second
        due_us = self.broker.now.mono_us + int(step.io_bytes * 1_000_000 / rate)
        ports = self.broker.ports

        def resume_when_due() -> None:
            ports.set_timer(max(due_us, self.broker.now.mono_us), self._go_on)

        ports.sync(step.sync, resume_when_due)

    def _cleaned(self, job: _Job) -> None:
        now_us, done, metrics = self.broker.now.mono_us, job.cleaning.done, self.metrics
        metrics.recopy_percent.value = done.written_bytes * 100 // max(done.read_bytes, 1)
        metrics.max_buffer_utilization_percent.value = done.map_used_percent
        metrics.max_clean_time_secs.value = (now_us - job.began_us) // 1_000_000
        metrics.time_since_last_run_ms.value = 0
        self._last_run_us = now_us
        self.set_back.pop(job.key, None)
        self._note_cleaned(job, done, now_us - job.began_us)
        self._job = None
        if job.ended is None:
            self._find_dirtiest()
        else:
            job.ended("")

    def _note_cleaned(self, job: _Job, done: Cleaned, took_us: int) -> None:
        self.broker.ports.note(
            "log_cleaned",
            ("partition", job.log.directory),
            ("end_offset", done.end_offset),
            ("read_bytes", done.read_bytes),
            ("written_bytes", done.written_bytes),
            ("records", done.records),
            ("kept", done.kept),
            ("took_us", took_us),
        )

    def _end(self, how: str, why: str) -> None:
        assert self._job is not None, "no pass runs"
        job, self._job = self._job, None
        self.set_back.pop(job.key, None)
        self.set_back[job.key] = job.log
        self.broker.ports.note(f"cleaning_{how}", ("partition", job.log.directory), ("reason", why))
        if job.ended is None:
            self._pause()
        else:
            job.ended(why)
