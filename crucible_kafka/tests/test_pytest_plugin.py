"""The pytest plugin: fixtures, marks, options, the section of a failed test, and no cost without the fixtures."""

import re
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from _pytest.pytester import SysModulesSnapshot

from crucible_kafka import SharedCluster

pytest_plugins = ["pytester"]
PLUGIN = ("-p", "crucible_kafka.pytest_plugin")
QUIET = ("-p", "no:cacheprovider", "-W", "error")


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep plugins that are installed here out of the inner runs, and what changes pytest's output on CI machines."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def no_second_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what inner runs import, except for their tests: pytester would forget it, and nodes that import message
    schemas later would have classes of another copy."""

    def forget_tests(_: SysModulesSnapshot) -> None:
        for name in [module for module in sys.modules if module == "conftest" or module.startswith("test_")]:
            del sys.modules[name]

    monkeypatch.setattr(SysModulesSnapshot, "restore", forget_tests)


def run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    """Run the tests in ``source`` in this process. A warning is an error."""
    pytester.makepyfile(textwrap.dedent(source))
    return pytester.runpytest_inprocess(*PLUGIN, *QUIET, *options)


def test_what_a_test_did_is_gone_in_the_next_one(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from confluent_kafka.admin import AdminClient
        names = []
        def test_first(kafka):
            kafka.set_feature("transaction.version", 0)
            names.append(kafka.topic("orders"))
            kafka.create_topic("by-name")
            kafka.on("Produce").drop_request(optional=True)
            kafka.max_versions("2.8")
            kafka.advertise("127.0.0.1", 1)
            kafka.node(0).kill()
        def test_second(kafka, kafka_cluster):
            assert kafka is kafka_cluster
            assert kafka.rules == []
            names.append(kafka.topic("orders"))
            kafka.create_topic("by-name")
            assert kafka.features()["transaction.version"] > 0
            metadata = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=30)
            assert metadata.brokers[0].port > 1
            versions = kafka.frames(api="ApiVersions", direction="response")[0].body["api_keys"]
            assert max(each["max_version"] for each in versions) > 13
            kafka.node(0).full_disk()
            kafka.node(0).pause()
        def test_third(kafka):
            names.append(kafka.topic("orders"))
            assert len(set(names)) == 3
            assert [*kafka.node(0).command("names")["topics"]] == names[-1:]
            assert kafka.frames() == []
        """,
    )
    result.assert_outcomes(passed=3)


def test_groups_of_a_test_are_deleted_with_their_offsets(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from confluent_kafka import Consumer, TopicPartition
        def test_first(kafka):
            consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "readers"})
            consumer.commit(offsets=[TopicPartition(kafka.topic(), 0, 7)], asynchronous=False)
            consumer.close()
            assert kafka.committed("readers")
        def test_second(kafka):
            assert kafka.groups() == []
        """,
    )
    result.assert_outcomes(passed=2)


def test_rule_that_never_fired_fails_a_test_that_passes(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        def test_passes(kafka):
            kafka.on("OffsetCommit", client_id="app-*").drop_response(times=1)
        def test_fails_itself(kafka):
            kafka.on("OffsetCommit").drop_response()
            assert 1 == 2
        def test_optional(kafka):
            kafka.on("OffsetCommit").drop_response(optional=True)
        def test_skips(kafka):
            kafka.on("OffsetCommit").drop_response()
            pytest.skip("not today")
        """,
    )
    result.assert_outcomes(passed=1, failed=2, skipped=1)
    text = result.stdout.str()
    sentence = """The rule on("OffsetCommit", client_id='app-*').drop_response(times=1) never fired;"""
    assert text.count(sentence) == 1
    assert 'on("OffsetCommit").drop_response() never fired' not in text
    assert "assert 1 == 2" in text


def test_failed_test_shows_rules_and_the_conversation_of_its_own_clients(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from confluent_kafka import Producer
        def send(kafka, client_id):
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "client.id": client_id})
            producer.produce(kafka.topic(), b"x")
            assert producer.flush(20) == 0
        def test_before(kafka):
            send(kafka, "earlier-app")
        def test_fails(kafka):
            kafka.on("Produce").drop_response(times=1)
            send(kafka, "my-app")
            assert False
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str().partition("- kafka -")[2]
    assert 'on("Produce").drop_response(times=1): fired 1 times' in text
    assert "my-app -> node 0" in text
    (lost,) = [line for line in text.splitlines() if "my-app <- node 0" in line and "[rule" in line]
    assert "Produce" in lost
    assert "response lost" in lost or "drop" in lost
    assert "earlier-app" not in text
    assert "min_version" not in text


def test_trace_of_a_failure_of_the_library_ends_at_the_line_of_the_test(pytester: pytest.Pytester) -> None:
    source = """
        def test_delivery(kafka):
            kafka.assert_delivered([b"one"], [])
        def test_refusal(kafka):
            kafka.create_topic("a")
            kafka.create_topic("a")
        """
    result = run(pytester, source)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["> * kafka.assert_delivered(*", "E *DeliveryViolated: *", "> * kafka.create_topic(*"])
    assert "cluster.py" not in result.stdout.str()
    assert "cluster.py" in run(pytester, source, "--full-trace").stdout.str()


def test_failures_of_fixtures_have_the_section_too(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        @pytest.fixture
        def fails_before(kafka):
            kafka.on("Fetch").hang(optional=True)
            raise OSError("before")
        @pytest.fixture
        def fails_after(kafka):
            yield
            kafka.on("Fetch").throttle(100)
            raise OSError("after")
        def test_first(fails_before): pass
        def test_second(fails_after): pass
        def test_third(kafka): pass
        """,
    )
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines(["*- kafka -*", "*hang(): fired 0 times", "*- kafka -*", "*throttle(*): fired 0 times"])


def test_fixtures_and_marks_of_the_same_names_in_a_project_are_its_own(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        @pytest.fixture(scope="session")
        def kafka_cluster():
            return "mine"
        @pytest.mark.kafka(image="kafka:4.1")
        def test_it(kafka_cluster):
            assert kafka_cluster == "not mine"
        """,
        "--kafka-config=num.partition=6",
    )
    result.assert_outcomes(failed=1)
    assert "- kafka -" not in result.stdout.str()


def test_test_of_the_session_cluster_has_the_section_too(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from confluent_kafka.admin import AdminClient
        def test_passes(kafka_cluster):
            AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers}).list_topics(timeout=30)
            assert kafka_cluster.frames()
        def test_fails(kafka_cluster):
            assert False
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*- kafka -*", "127.0.0.1:*", "Rules: none", "No client sent a request."])


def test_marks_with_equal_settings_share_a_cluster(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        seen = []
        @pytest.mark.kafka(config={"num.partitions": 6}, versions="2.8")
        def test_marked(kafka):
            seen.append(kafka)
        @pytest.mark.kafka(config={"num.partitions": "6"})
        class TestClass:
            @pytest.mark.kafka(versions="2.8")
            def test_marked_too(self, kafka):
                assert seen == [kafka]
            @pytest.mark.kafka(versions={"Fetch": 6})
            def test_other_versions(self, kafka):
                assert kafka not in seen
        def test_plain(kafka):
            assert kafka not in seen
        @pytest.mark.kafka
        def test_mark_for_selection_only():
            pass
        """,
    )
    result.assert_outcomes(passed=5)


def test_no_more_than_a_few_clusters_of_marks_run_at_once(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        seen = []
        @pytest.mark.parametrize("count", [pytest.param(n, marks=pytest.mark.kafka(config={"num.partitions": n}))
                                           for n in range(1, 7)])
        def test_marked(kafka, kafka_cluster, count):
            seen.append(kafka)
            assert kafka_cluster not in seen
            assert kafka_cluster.node(0).is_running
        def test_count():
            assert ["closed" in repr(each) for each in seen] == [True, True, False, False, False, False]
        """,
    )
    result.assert_outcomes(passed=7)


def test_wrong_marks_fail_their_tests_with_a_sentence(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        @pytest.mark.kafka(node=3)
        def test_unknown_field(kafka): pass
        @pytest.mark.kafka(nodes=2)
        def test_wrong_number(kafka): pass
        @pytest.mark.kafka(config={"num.partition": 2})
        def test_unknown_setting(kafka): pass
        @pytest.mark.kafka(versions="0.8")
        def test_unknown_release(kafka): pass
        @pytest.mark.kafka(nodes=3)
        def test_wrong_fixture(kafka_cluster): pass
        @pytest.mark.kafka(nodes=[3])
        def test_list_of_nodes(kafka): pass
        @pytest.mark.kafka(config=["num.partitions"])
        def test_list_of_settings(kafka): pass
        @pytest.mark.kafka(versions=2.8)
        def test_number_as_release(kafka): pass
        """,
    )
    result.assert_outcomes(errors=8)
    result.stdout.fnmatch_lines(
        [
            "The mark kafka has node: it takes nodes=, config=, versions=.",
            "*nodes is 2: give 1, 3 or 5*",
            "*num.partition*",
            "*'0.8'*",
            "The mark kafka changes the fixture kafka, and this test uses kafka_cluster alone: use kafka instead.",
            "The mark kafka has nodes=[[]3]: give 1, 3 or 5.",
            "The mark kafka has config=[[]'num.partitions']: give a dictionary.",
            'The mark kafka has versions=2.8: give a release, such as "2.8".',
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "another exception" not in result.stdout.str()


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--kafka-nodes=2", "--kafka-nodes is 2: give 1, 3 or 5."),
        ("--kafka-nodes=many", "--kafka-nodes is many: give 1, 3 or 5."),
        ("--kafka-config=num.partitions", "give KEY=VALUE, such as num.partitions=6."),
        ("--kafka-config=num.partition=6", "num.partition"),
        ("--kafka-config=num.partitions=x", "num.partitions"),
        ("--kafka-versions=new", "give a release of Kafka, such as 2.8."),
        ("--kafka-versions=0.8", "give a release from 1.0"),
    ],
)
def test_wrong_options_end_the_run_with_a_sentence(pytester: pytest.Pytester, option: str, sentence: str) -> None:
    result = run(pytester, "def test_it(kafka): pass\n", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.stderr.lines if line.startswith("ERROR:")]
    assert sentence in line
    assert "Traceback" not in result.stderr.str()


def test_options_give_the_settings(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from confluent_kafka.admin import AdminClient
        def test_it(kafka):
            assert kafka._config["num.partitions"] == "6"
            AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=30)
            (versions,) = kafka.frames(api="ApiVersions", direction="response")[:1]
            assert max(each["max_version"] for each in versions.body["api_keys"] if each["api_key"] == 1) == 12
        """,
        "--kafka-config=num.partitions=6",
        "--kafka-versions=2.8",
    )
    result.assert_outcomes(passed=1)


def test_cluster_that_cannot_start_is_tried_once_and_reported_by_each_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from crucible_kafka import SharedCluster, StartFailed
        def start(self):
            print("tried to start")
            raise StartFailed("Node 0 did not start: no memory.")
        SharedCluster.start = start
        """
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedCluster, "start", SharedCluster.start)  # Undoes what the inner run changes.
        result = run(
            pytester,
            """
            def test_first(kafka): pass
            def test_second(kafka): pass
            def test_third(kafka_cluster): pass
            """,
        )
    result.assert_outcomes(errors=3)
    text = result.stdout.str()
    assert text.count("tried to start") == 1
    assert text.count("\nThe Kafka cluster could not be started: Node 0 did not start: no memory.\n") == 3


def test_node_that_crashes_fails_its_test_and_is_back_in_the_next(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from crucible_kafka.tests.test_library_ends import crash
        def test_first(kafka):
            crash(kafka.node(0))
        def test_second(kafka):
            kafka.topic("orders")
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["Node 0 ended, though no test had ended it: it crashed*", "*planted by a test*"])


def test_cluster_that_does_not_recover_is_replaced(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        from crucible_kafka import CrucibleTimeout
        seen = []
        def test_first(kafka):
            seen.append(kafka)
            def end_test():
                raise CrucibleTimeout("node 1 is not in sync.")
            kafka.end_test = end_test
        def test_second(kafka):
            assert kafka not in seen
            assert "closed" in repr(seen[0])
            kafka.close()
        def test_third(kafka):
            assert kafka.topic()
        """,
    )
    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines(["*because this one did not recover: node 1 is not in sync."])


def test_clients_that_stay_connected_do_not_block_the_end(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        left = []
        def pytest_unconfigure():
            for consumer in left:
                consumer.close()
        """
    )
    result = run(
        pytester,
        """
        from conftest import left
        from confluent_kafka import Consumer
        def test_it(kafka):
            consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "log_level": 0})
            consumer.subscribe([kafka.topic()])
            assert consumer.poll(2) is None
            left.append(consumer)
        def test_next(kafka):
            assert kafka.topic()
        """,
    )
    result.assert_outcomes(passed=2)
    assert result.duration < 30


def test_loop_of_an_async_test_goes_on_while_the_cluster_responds(pytester: pytest.Pytester) -> None:
    """The conftest runs coroutines as pytest-asyncio does: each in a loop of its own, within fixtures that are sync."""
    pytester.makeconftest(
        """
        import asyncio, inspect, pytest
        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(pyfuncitem):
            if inspect.iscoroutinefunction(pyfuncitem.obj):
                names = pyfuncitem._fixtureinfo.argnames
                asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
                return True
        """
    )
    result = run(
        pytester,
        """
        import asyncio
        from aiokafka import AIOKafkaProducer
        async def test_it(kafka):
            late = kafka.on("Produce").delay_response(0.5, times=1)
            orders = kafka.topic("orders")
            async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
                sending = asyncio.create_task(producer.send_and_wait(orders, b"x"))
                ticks = 0
                while not sending.done():
                    await asyncio.sleep(0.01)
                    ticks += 1
            assert ticks > 3
            late.assert_fired()
            assert [each.value for each in kafka.records(orders)] == [b"x"]
        async def test_rule_that_never_fires(kafka):
            kafka.on("Produce").drop_response()
        """,
    )
    result.assert_outcomes(passed=1, failed=1)


@pytest.mark.live
def test_nothing_is_imported_unless_a_test_uses_a_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys
        def test_it():
            found = [name for name in sys.modules if name.partition(".")[0] in ("reference_broker", "kio")]
            assert found == []
            assert "crucible_kafka.library" not in sys.modules
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN, *QUIET, "--kafka-config=num.partition=6", "--kafka-nodes=3")
    result.assert_outcomes(passed=1)


@pytest.mark.live
def test_each_worker_of_xdist_has_a_cluster(pytester: pytest.Pytester, tmp_path: Path) -> None:
    pytester.makepyfile(
        f"""
        import os, pathlib, pytest
        @pytest.mark.parametrize("number", range(4))
        def test_it(kafka, number):
            kafka.create_topic("same-name")
            pathlib.Path({str(tmp_path)!r}, str(number)).write_text(kafka.bootstrap_servers)
        def test_fails(kafka):
            assert False
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN, *QUIET, "-p", "xdist.plugin", "-n", "2")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*- kafka -*", "Rules: none"])
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 2


@pytest.mark.live
def test_nodes_that_a_test_killed_paused_or_isolated_are_back_in_the_next_one(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import pytest
        pytestmark = pytest.mark.kafka(nodes=3)
        def test_first(kafka):
            kafka.node(0).kill()
            kafka.node(1).kill(fence=False)
            assert False
        def test_second(kafka):
            assert all(kafka.node(number).is_serving for number in range(3))
            kafka.topic("orders", replicas=3)
            kafka.on(sender="any").drop_request(optional=True)
            kafka.node(0).kill(fence=False)
            kafka.node(1).pause()
            kafka.node(2).isolate()
        def test_third(kafka):
            kafka.topic("orders", replicas=3)
            for number in range(3):
                kafka.node(number).kill(fence=False)
        def test_fourth(kafka):
            kafka.topic("orders", replicas=3)
        """,
    )
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*node 0 does not run, node 1 does not run, node 2 serves"])


@pytest.mark.live
def test_tests_in_the_documentation_pass(pytester: pytest.Pytester) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "pytest.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    result = run(pytester, "\n".join(["import pytest", *blocks]))
    result.assert_outcomes(passed=2)


def test_entry_point_has_the_name_of_the_module() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    (name,) = project["entry-points"]["pytest11"].items()
    assert name == (PLUGIN[1], PLUGIN[1])
