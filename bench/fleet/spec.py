"""The specification of a fleet, as one value. The fleet command reads it from SPEC.json; the simulator makes it itself.

Its load is declared as in scenario files (``scenarios/load.py``). The rest says where and how the load is played. A
``LoadShape`` sets how many of the clients live at each moment; without one all of them live all the time. Unknown keys
are rejected.
"""

from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec

from bench.fleet.behaviours.admin import LoadedTopic
from bench.fleet.behaviours.producers import NOT_COMPACTED
from bench.fleet.behaviours.protocol import Address, ClientSettings, TopicPartition, Versions
from bench.fleet.values import smallest_size_bytes
from scenarios.consistency import check_load
from scenarios.declared import as_table, read
from scenarios.fields import Reader, ScenarioError
from scenarios.load import Load

STEP: Final = "step"
SPIKE: Final = "spike"
SOAK: Final = "soak"
KINDS: Final = (STEP, SPIKE, SOAK)

SPIKE_FROM: Final = 0.4
SPIKE_UNTIL: Final = 0.6
SOAK_RAMP: Final = 0.1


class LoadShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``kind`` of a shape is one of these:

    - ``step`` adds clients in ``steps`` equal steps of equal length.
    - ``spike`` has ``base_percent`` of the clients, and all of them from 40 % to 60 % of the time.
    - ``soak`` adds clients evenly over the first tenth of the time, and keeps them.
    """

    kind: str
    steps: int = 5
    base_percent: int = 20


def share(shape: LoadShape, elapsed_s: float, seconds: float) -> float:
    """Return the share of all clients, from 0 to 1, that live ``elapsed_s`` into a load of ``seconds``."""
    done = min(1.0, max(0.0, elapsed_s / seconds)) if seconds > 0 else 1.0
    if shape.kind == STEP:
        return min(shape.steps, int(done * shape.steps) + 1) / shape.steps
    if shape.kind == SPIKE:
        return 1.0 if SPIKE_FROM <= done < SPIKE_UNTIL else shape.base_percent / 100
    return min(1.0, done / SOAK_RAMP)


def clients_at(shape: LoadShape, clients: int, elapsed_s: float, seconds: float) -> int:
    """Return how many clients live at this moment. It is at least one."""
    return max(1, round(clients * share(shape, elapsed_s, seconds)))


WHERE = "the fleet spec"
IDLE_TOPIC = "idle"
MADE_TOPIC = "made"


class SpecError(Exception):
    """The spec cannot be played. The message is one sentence."""


class FleetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The specification of a fleet: its load and its cluster."""

    bootstrap: list[str]  # all nodes, as ["host:port", ...]
    load: Load
    """The load of a scenario file. If its ``seconds`` are 0, it lasts until the fleet is stopped."""
    target: list[str] = []  # the nodes of the cluster that a mirror copies to
    topic_prefix: str = ""  # begins the names of all topics
    out_dir: str = ""
    seed: int = 1
    process_prefix: str = ""  # begins all process names and client IDs
    start_mono_us: int = 0  # the run's start on CLOCK_MONOTONIC; 0: when the fleet starts
    workers: int = 2  # number of Locust's worker processes
    drain_ms: int = 15_000
    final_read_ms: int = 60_000
    reach_ms: int = 10_000  # how long to wait for a broker's first response
    versions: dict[str, int] = {}
    shape: LoadShape | None = None
    """The share of the clients that live at each time; needs ``load.seconds``. With None all live from the start."""
    dial: dict[str, str] = {}
    """The "host:port" to connect to, by the one that a node advertises. It serves a proxy unknown to the broker."""
    prelude: str = ""
    """A "module:function" that each process calls with ``prelude_words`` before it makes clients. It may change
    something about the clients, for example plant a mutant."""
    prelude_words: list[str] = []

    @property
    def idle_topic(self) -> str:
        """The topic of the idle partitions, which has one for each fetcher."""
        return f"{self.topic_prefix}{IDLE_TOPIC}"

    @property
    def made_topic(self) -> str:
        """The prefix of the names of the topics that admins create."""
        return f"{self.topic_prefix}{MADE_TOPIC}"

    @property
    def replicas(self) -> int:
        """The replication factor of the idle partitions and of the topics that admins create."""
        return self.load.hot.replicas if self.load.topics else 1

    def partitions_of(self, *topics: str) -> list[TopicPartition]:
        """Return all partitions of these topics, which are named as in the load."""
        counts = {topic.name: topic.partitions for topic in self.load.topics}
        return [
            TopicPartition(f"{self.topic_prefix}{name}", number) for name in topics for number in range(counts[name])
        ]

    @property
    def loaded_topics(self) -> tuple[LoadedTopic, ...]:
        """The topics of the load, as admins alter them."""
        return tuple(
            LoadedTopic(f"{self.topic_prefix}{topic.name}", 1, topic.partitions, topic.min_insync, topic.replicas)
            for topic in self.load.topics
        )

    def delete_retention_us(self, topic: str) -> int:
        """Return how long a topic of the load keeps tombstones, or NOT_COMPACTED."""
        found = next(each for each in self.load.topics if each.name == topic)
        return found.delete_retention_ms * 1000 if found.is_compacted else NOT_COMPACTED

    @property
    def load_partitions(self) -> list[TopicPartition]:
        """The partitions of all topics of the load."""
        return self.partitions_of(*(topic.name for topic in self.load.topics))

    @property
    def idle_partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(self.idle_topic, number)
            for number in range(sum(fetcher.count for fetcher in self.load.fetchers))
        ]


def check(spec: FleetSpec) -> None:
    """Check what must fit together.

    :raises SpecError: numbers make no sense together, or values have no room for their writer's name.
    """
    if not spec.bootstrap or any(":" not in each for each in spec.bootstrap):
        raise SpecError("The bootstrap list must name at least one host:port.")
    if spec.workers < 1:
        raise SpecError("There must be at least 1 worker.")
    if spec.shape is not None:
        _check_shape(spec.shape, spec.load.seconds)
    try:
        check_load(spec.load, WHERE)
    except ScenarioError as error:
        raise SpecError(f"{error}.") from error
    for producers in spec.load.producers:
        if producers.record_bytes < smallest_size_bytes(f"{spec.process_prefix}producer-9999"):
            raise SpecError(f"record_bytes {producers.record_bytes} has no room for a writer's name and number.")
    if spec.load.mirror is not None and (not spec.target or any(":" not in each for each in spec.target)):
        raise SpecError("The target that a mirror copies to must list at least one host:port.")


def _check_shape(shape: LoadShape, seconds: float) -> None:
    if shape.kind not in KINDS:
        raise SpecError(f"There is no load shape {shape.kind!r}; there are {', '.join(KINDS)}.")
    if not seconds:
        raise SpecError("A load shape needs to know how long the load lasts: load.seconds must be at least 1.")
    if shape.steps < 1 or not 1 <= shape.base_percent <= 100:
        raise SpecError("A load shape needs steps of at least 1, and a base_percent from 1 to 100.")


def parse_spec(data: bytes) -> FleetSpec:
    """Read and check a spec.

    :raises SpecError: it is not JSON of this shape, or ``check`` refuses it.
    """
    try:
        raw = msgspec.json.decode(data, type=dict[str, object])
        load = read(Load, Reader(raw, WHERE, "").table("load"))
        spec = msgspec.structs.replace(msgspec.convert({**raw, "load": {"seconds": 0}}, FleetSpec), load=load)
    except (msgspec.DecodeError, msgspec.ValidationError, ScenarioError) as error:
        raise SpecError(f"The fleet spec cannot be read: {error}.") from error
    check(spec)
    return spec


def write_spec(spec: FleetSpec, path: Path) -> Path:
    """Write the spec so that ``parse_spec`` can read it, and return the path."""
    path.write_bytes(msgspec.json.encode({**msgspec.structs.asdict(spec), "load": as_table(spec.load)}))
    return path


def address_of(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()):
        raise SpecError(f"{text!r} is not host:port.")
    return Address(host.strip("[]"), int(port))


def settings_of(spec: FleetSpec) -> ClientSettings:
    return ClientSettings(
        bootstrap=tuple(address_of(each) for each in spec.bootstrap),
        versions=msgspec.convert(spec.versions, Versions),
        request_timeout_us=spec.load.request_timeout_ms * 1000,
        drain_us=spec.drain_ms * 1000,
        dial={address_of(advertised): address_of(dialled) for advertised, dialled in spec.dial.items()},
    )


def call_prelude(spec: FleetSpec) -> None:
    """Call the spec's prelude, if it has one.

    :raises SpecError: there is no such function.
    """
    if not spec.prelude:
        return
    module, _, name = spec.prelude.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"The prelude {spec.prelude!r} cannot be called: {error}.") from error
    function(*spec.prelude_words)
