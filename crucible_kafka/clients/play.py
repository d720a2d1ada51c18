"""The context of a case, and its play: clusters, topics, clients, judgements, and the verdict."""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from crucible_kafka.clients.adapter import AdapterCommand, AdapterProcess
from crucible_kafka.clients.application import Admin, Client, Consumer, Exchange, Producer
from crucible_kafka.clients.case import (
    AdapterFailed,
    CaseResult,
    ClientCase,
    ClientVerdict,
    Judgement,
    Level,
    NotShown,
    NotSupported,
    Violated,
)
from crucible_kafka.clients.machine_wait import MachineWait
from crucible_kafka.clients.protocol import AdapterInfo, Setting
from crucible_kafka.clients.raw_servers import Forwarder, RawServer
from crucible_kafka.library import Cluster, CrucibleError, Frame, RuleNeverFired, values
from crucible_kafka.library.requests import request
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import error_name
from reference_broker.wire.messages import body_class
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

ClientT = TypeVar("ClientT", bound=Client)
AT_ONCE: Final = 3
"""Number of cases that run side by side. Most of them wait most of the time."""
WRITE_LIMIT_S: Final = 10.0
SHOWN_CHARACTERS: Final = 300
SHOWN_LINES: Final = 80
QUIET_POLLS: Final = 2
"""Number of further polls that must bring nothing, after all records were read."""


@dataclass(frozen=True, slots=True)
class Expected:
    """An expectation of several values: ``one_of``, ``at_least`` and ``at_most``."""

    words: str
    fits: Callable[[Any], bool]

    def __str__(self) -> str:
        return self.words


def one_of(*values: object) -> Expected:
    return Expected(f"one of {', '.join(map(str, values))}", lambda actual: actual in values)


def at_least(count: float) -> Expected:
    return Expected(f"at least {count:g}", lambda actual: bool(actual >= count))


def at_most(count: float) -> Expected:
    return Expected(f"at most {count:g}", lambda actual: bool(actual <= count))


class Play:
    """The context of a case. Everything that it makes ends with the case."""

    def __init__(self, case: ClientCase, command: AdapterCommand) -> None:
        self.case = case
        self._command = command
        self._deadline = time.monotonic() + case.limit_s
        self._clusters: list[Cluster] = []
        self._clients: dict[str, Client] = {}
        self._processes: list[AdapterProcess] = []
        self._ends = ExitStack()
        self._machine = MachineWait()
        self._ends.callback(self._machine.end)
        self._lines: list[tuple[float, str]] = []
        self._topics = 0
        self._imitates = False
        """Whether a cluster offers the versions of another release."""
        self.judgements: list[Judgement] = []
        self.wrong_end = ""
        """The problem with the end of an adapter's process, or an empty string."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            self.wrong_end = process.end() or self.wrong_end
        self._ends.close()

    # The broker's side

    def cluster(self, nodes: int = 1, versions: str | Mapping[str, int] | None = None, **config: object) -> Cluster:
        """Start a cluster of nodes in this process, which clients bootstrap from. Settings have an underscore for each
        dot: ``num_partitions=3``."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        kafka = Cluster(nodes, processes=False, config=settings, versions=versions)
        self._imitates = self._imitates or versions is not None
        self._ends.callback(kafka.close)
        self._clusters.append(kafka.start())
        return kafka

    @property
    def kafka(self) -> Cluster:
        """The first cluster, which is started with one node if the case has started none."""
        return self._clusters[0] if self._clusters else self.cluster()

    def topic(self, partitions: int = 1, **config: object) -> str:
        """Create a topic in the first cluster, and return its name. Settings as in ``cluster``."""
        self._topics += 1
        name = f"topic-{self._topics}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.kafka.create_topic(name, partitions, config=settings)
        return name

    def write(self, topic: str, count: int = 10, partition: int = 0, size_bytes: int = 0) -> list[str]:
        """Write records to a partition without the client, in one batch, and return their values."""
        written = values(count, size_bytes=size_bytes)
        now_ms = time.time_ns() // 1_000_000
        self.append(topic, build([Record(timestamp_ms=now_ms, value=each) for each in written]), partition)
        self.note(f"(written to {topic}-{partition}: {count} records)")
        return [each.decode() for each in written]

    def append(self, topic: str, batch: bytes, partition: int = 0) -> int:
        """Write a batch to a partition without the client, and return its base offset."""
        leader = self.kafka.node(self.kafka.leader(topic, partition)).address
        names = self.kafka.node(0).command("names")["topics"]
        wanted = ProduceTopic(topic, bytes.fromhex(names[topic]), [ProducePartition(partition, batch)])
        response = request(
            leader, ApiKey.PRODUCE, ProduceRequest(-1, int(WRITE_LIMIT_S * 1000), [wanted]), WRITE_LIMIT_S
        )
        (written,) = response.responses[0].partitions
        assert written.error_code == 0, f"the broker refused the batch: {error_name(written.error_code)}"
        return int(written.base_offset)

    def admin_request(self, api_key: int, **fields: object) -> Any:
        """Send a request without the client, and return the response. ``fields`` are those of the newest version."""
        address = self.kafka.active_controller().address
        return request(address, api_key, body_class(api_key, "request")(**fields), WRITE_LIMIT_S)

    def topic_id(self, topic: str) -> UUID:
        """Return the ID of a topic, as bodies of responses have it."""
        return UUID(self.kafka.node(0).command("names")["topics"][topic])

    def silent(self) -> RawServer:
        """Start a server that accepts connections, reads, and never responds."""
        return self._raw(RawServer())

    def refusing(self) -> RawServer:
        """Take a port at which connections are refused."""
        return self._raw(RawServer(is_listening=False))

    def garbled(self, response: bytes) -> RawServer:
        """Start a server that sends these bytes whenever it gets some."""
        return self._raw(RawServer(response))

    def forwarder(self, node: int = 0) -> Forwarder:
        """Make an address of its own for a node, which refuses connections until it is opened."""
        forwarder = Forwarder(self.kafka.node(node).address)
        self._ends.callback(forwarder.close)
        return forwarder

    def _raw(self, server: RawServer) -> RawServer:
        self._ends.callback(server.close)
        return server

    # The client's side

    def consumer(self, beside: Client | None = None, bootstrap: str = "", **settings: Setting) -> Consumer:
        """Make a consumer, in a process of its own or in that of another client. Its settings are
        ``protocol.SETTINGS`` over ``application.OF_CONSUMER``."""
        return self._client(Consumer, beside, bootstrap, settings)

    def producer(self, beside: Client | None = None, bootstrap: str = "", **settings: Setting) -> Producer:
        """Make a producer, as ``consumer``."""
        return self._client(Producer, beside, bootstrap, settings)

    def admin(self, beside: Client | None = None, bootstrap: str = "", **settings: Setting) -> Admin:
        """Make an admin client, as ``consumer``."""
        return self._client(Admin, beside, bootstrap, settings)

    def _client(
        self, kind: type[ClientT], beside: Client | None, bootstrap: str, settings: dict[str, Setting]
    ) -> ClientT:
        name = f"{kind.ROLE}-{sum(each.ROLE == kind.ROLE for each in self._clients.values()) + 1}"
        servers = bootstrap or self.kafka.bootstrap_servers
        if beside is None:
            process = AdapterProcess(self._command)
            self._processes.append(process)
            self._machine.add(process.pid)
        else:
            process = beside.process
        client = kind(self, process, name, settings)
        self._clients[name] = client  # Events may come before open returns.
        if not client.open(servers) and not bootstrap and self._is_ordinary():
            # The client refuses its settings, or its adapter stumbles: that shows nothing about what brokers do.
            raise AdapterFailed(
                f"{name} could not be made, though nothing has failed: {client.errors[-1].failure.message}"
            )
        return client

    def _is_ordinary(self) -> bool:
        """Return whether no client can have met anything special yet: one node, all versions, and no rule has acted."""
        kafka = self.kafka
        return kafka.nodes == 1 and not self._imitates and not any(rule.fired for rule in kafka.rules)

    def drain(self) -> None:
        for process in self._processes:
            for _, event in process.take_events():
                client = self._clients.get(event.client)
                if client is not None:
                    client.receive(event)

    # Conversation

    def note(self, line: str) -> None:
        self._lines.append((time.time(), line))

    def remaining_s(self) -> float:
        return self._deadline - time.monotonic()

    def frames(self, client_id: str = "*") -> list[Frame]:
        return sorted(
            (frame for kafka in self._clusters for frame in kafka.frames(client_id=client_id)),
            key=lambda frame: frame.at_s,
        )

    def conversation(self) -> list[str]:
        """Return what the application did and got, and the frames, by time. Runs of the same are one line."""
        lines = list(self._lines)
        with suppress(CrucibleError):
            lines += [(frame.at_s, str(frame).partition(" ")[2]) for frame in self.frames()]
        return _shortened(sorted(lines))

    # Judgements

    def data(self, subject: str, actual: object, expected: object) -> None:
        """Judge what became of records: acknowledged, written, read, committed."""
        self._judge("data", subject, actual, expected)

    def wire(self, subject: str, actual: object, expected: object) -> None:
        """Judge the requests of a client."""
        self._judge("wire", subject, actual, expected)

    def error(self, subject: str, actual: object, expected: object) -> None:
        """Judge what the application received: no error, a retriable or a fatal one."""
        self._judge("error", subject, actual, expected)

    def progress(self, subject: str, is_done: object, within_s: float, reason: str) -> None:
        """Judge whether work went on within a bound. ``reason`` names the settings from which the bound comes."""
        self._judge("progress", f"{subject} within {within_s:.1f} s ({reason})", bool(is_done), True)

    def _judge(self, kind: str, subject: str, actual: object, expected: object) -> None:
        fits = expected.fits(actual) if isinstance(expected, Expected) else actual == expected
        judgement = Judgement(kind, subject, _words(actual), _words(expected))
        self.judgements.append(judgement)
        if not fits:
            raise Violated(kind, f"{subject}: {judgement.seen}, and {judgement.wanted} is wanted")

    def reads(self, consumer: Consumer, expected: Sequence[str], timeouts: float = 3, from_record: int = 0) -> None:
        """Judge that the consumer reads these values, each once and in this order in each partition, and nothing else,
        within this number of request timeouts. Values before ``from_record`` of its records do not count.

        What the adapter reports is compared with the log, too.
        """
        within_s = consumer.bound_s(timeouts)
        done = consumer.poll_until(lambda: set(expected) <= set(consumer.values[from_record:]), within_s)
        for _ in range(QUIET_POLLS if done else 0):
            consumer.poll()
        records = consumer.records[from_record:]
        self._compare_with_log(records)
        missing = [value for value in expected if value not in {record.value for record in records}]
        reason = f"{timeouts:g} x request_timeout_ms {consumer.settings['request_timeout_ms']}"
        if missing:
            fatal = f" The client failed: {consumer.fatal}." if consumer.fatal else ""
            last = f" Last error: {consumer.errors[-1]}." if consumer.errors and not fatal else ""
            raise Violated(
                "progress",
                f"{len(missing)} of {len(expected)} records were not read within {within_s:.1f} s ({reason}), the "
                f"first is {missing[0]}.{fatal}{last}",
            )
        self.judgements.append(
            Judgement("progress", f"records read within {within_s:.1f} s ({reason})", "True", "True")
        )
        index_of = {value: index for index, value in enumerate(expected)}
        for partition in sorted({(record.topic, record.partition) for record in records}):
            read = [record.value for record in records if (record.topic, record.partition) == partition]
            in_order = sorted({value for value in read if value in index_of}, key=lambda value: index_of[value or ""])
            self.data(f"values read from {partition[0]}-{partition[1]}", _numbers(read), _numbers(in_order))

    def _compare_with_log(self, records: Sequence[Any]) -> None:
        """Judge that each record that the application got is in the log at that place."""
        logs: dict[str, dict[tuple[int, int], bytes | None]] = {}
        for record in records:
            if record.topic not in logs:
                stored = self.kafka.records(record.topic)
                logs[record.topic] = {(entry.partition, entry.offset): entry.value for entry in stored}
            value = logs[record.topic].get((record.partition, record.offset), record.value)  # It may be deleted by now.
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            if text != record.value:
                position = f"{record.topic}-{record.partition}@{record.offset}"
                raise Violated("data", f"the application got {record.value!r} at {position}, and the log has {text!r}")

    def writes(self, producer: Producer, once: bool = True) -> None:
        """Judge that each record has its outcome within the delivery timeout, and that the log has each acknowledged
        value: once and in the order of sending in each partition, or with ``once=False`` at least once. What failed may
        be there or not."""
        timeout_ms = int(producer.settings["delivery_timeout_ms"])
        settled = producer.flush()
        bound_s = producer.bound_s(2, also_ms=timeout_ms)
        self.progress("each record has its outcome", settled, bound_s, f"delivery_timeout_ms {timeout_ms}")
        for topic in sorted({record.topic for record in producer.sent}):
            sent = [record.value for record in producer.sent if record.topic == topic]
            acknowledged = {record.value for record in producer.sent if record.topic == topic and record.acknowledged}
            stored = self.kafka.records(topic)
            texts = [record.value.decode() if record.value is not None else None for record in stored]
            missing = [value for value in sent if value in acknowledged and value not in texts]
            self.data(f"acknowledged values that {topic} lacks", _numbers(missing), [])
            for partition in sorted({record.partition for record in stored}):
                in_partition = [
                    text for text, record in zip(texts, stored, strict=True) if record.partition == partition
                ]
                counted = [text for text in in_partition if text in set(sent)]
                firsts = list(dict.fromkeys(counted))
                in_order = [value for value in sent if value in set(firsts)]
                subject = f"values in the log of {topic}-{partition}"
                self.data(subject, _numbers(counted if once else firsts), _numbers(in_order))

    def require(self, condition: object, missing: str) -> None:
        """End the case as "not shown" unless what it needs has happened. Rules that have never fired end it by
        themselves."""
        if not condition:
            raise NotShown(f"{missing}.")

    def supported(self, condition: object, missing: str) -> None:
        """End the case as "not supported" unless the client has what it is about."""
        if not condition:
            raise NotSupported(f"{missing}.")

    def starved(self) -> str:
        """Return how long the suite and its clients have waited for the machine if that is too long to judge bounds, or
        an empty string."""
        return self._machine.starved()

    def unfired(self) -> str:
        """Return the sentence about the first rule that has never fired, or an empty string."""
        for kafka in self._clusters:
            try:
                kafka.check_rules()
            except RuleNeverFired as never:
                return str(never)
        return ""


def session_of(exchanges: Sequence[Exchange]) -> int:
    """Return the ID of the fetch session that the last of these Fetch requests had, or 0."""
    return int(exchanges[-1].body.get("session_id", 0)) if exchanges else 0


def _numbers(values: Sequence[str | None]) -> list[str]:
    """Return values as their writer and number, which is what a person compares."""
    return [
        ":".join(value.split(":")[1:3]) if value and value.startswith("crucible:") else str(value) for value in values
    ]


def _words(value: object) -> str:
    text = "nothing" if value in ([], "", None) else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _shortened(lines: Sequence[tuple[float, str]]) -> list[str]:
    """Return lines with their times. Lines that repeat are counted, and the middle of a long conversation is left
    out."""
    shown: list[str] = []
    last, repeated = "", 0
    began = lines[0][0] if lines else 0.0
    for at_s, line in lines:
        kind = " ".join(line.split()[:5]) if " -> " in line or " <- " in line else line
        if kind == last and "[rule" not in line:
            repeated += 1
            continue
        if repeated:
            shown.append(f"          ... {repeated} more of the same")
        shown.append(f"{at_s - began:8.3f}  {line}")
        last, repeated = kind, 0
    if repeated:
        shown.append(f"          ... {repeated} more of the same")
    if len(shown) > SHOWN_LINES:
        first = SHOWN_LINES // 3
        left_out = len(shown) - SHOWN_LINES
        shown = [*shown[:first], f"          ... {left_out} lines left out", *shown[first + left_out :]]
    return shown


# Playing


def play_case(case: ClientCase, command: AdapterCommand, about: AdapterInfo) -> CaseResult:
    """Play one case. It raises nothing that a client, an adapter or a case may cause."""
    missing = [need for need in case.needs if need not in about.features]
    if missing:
        reason = f"the client lacks {', '.join(missing)}"
        return CaseResult(case, ClientVerdict.NOT_SUPPORTED, reason, 0.0)
    began = time.monotonic()
    at = Play(case, command)
    conversation: list[str] = []
    with at:
        verdict, reason = _conduct(at)
        conversation = at.conversation()
    if at.wrong_end and verdict is ClientVerdict.PASS:
        verdict, reason = ClientVerdict.ADAPTER_FAILED, f"At its end, {at.wrong_end}."
    return CaseResult(case, verdict, reason, time.monotonic() - began, at.judgements, conversation)


def _conduct(at: Play) -> tuple[ClientVerdict, str]:
    try:
        return _judged(at)
    except AdapterFailed as error:
        return ClientVerdict.ADAPTER_FAILED, str(error)
    except NotSupported as error:
        return ClientVerdict.NOT_SUPPORTED, str(error)
    except NotShown as error:
        return ClientVerdict.NOT_SHOWN, str(error)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return ClientVerdict.OUR_ERROR, f"{type(error).__name__}: {error}, {where}"


def _judged(at: Play) -> tuple[ClientVerdict, str]:
    try:
        at.case.conduct(at)
    except Violated as error:
        if at.remaining_s() <= 0:
            return ClientVerdict.OUR_ERROR, f"the case took longer than {at.case.limit_s:g} s; last: {error}"
        if starved := at.starved():
            return ClientVerdict.OUR_ERROR, f"not judged, the machine was too slow: {starved}. Seen: {error}"
        if never := at.unfired():
            return ClientVerdict.NOT_SHOWN, f"{never} And before that: {error}"
        return ClientVerdict.FAIL if at.case.level is Level.MUST else ClientVerdict.DIFFERS, str(error)
    never = at.unfired()
    return (ClientVerdict.NOT_SHOWN, never) if never else (ClientVerdict.PASS, "")


def play_all(
    cases: Sequence[ClientCase],
    command: AdapterCommand,
    about: AdapterInfo,
    done: Callable[[CaseResult], None],
    at_once: int = AT_ONCE,
) -> list[CaseResult]:
    """Play the cases side by side, and return their results in the order of ``cases``. ``done`` gets each result when
    it is there."""

    def play(case: ClientCase) -> CaseResult:
        result = play_case(case, command, about)
        done(result)
        return result

    with ThreadPoolExecutor(at_once, thread_name_prefix="case") as threads:
        futures = [threads.submit(play, case) for case in cases]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
