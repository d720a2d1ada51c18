"""Target files: parsing, errors, and how nodes are laid out."""

from pathlib import Path

import pytest

from bench.targets import loader
from bench.targets.layout import ClusterLayout
from bench.targets.model import Chosen, TargetError

SMALL = """
title = "A small broker"
nodes = 2

[node]
command = ["broker", "--at", "{address}", "{settings...}", "{flags...}", "--peers", "{peers}"]
prepare = ["true"]
ports = ["admin"]
peer = "{id}={address}"
setting = ["--set", "{key}:{value}"]
feature = ["--feature", "{key}={value}"]
links = "peers"

[node.files]
"broker.json" = '{"admin": {admin_port}, "role": "{role}"}'

[node.words]
flags = "-a -b"
role = "voter {id}"

[node.observer]
role = "observer"
"""
REACHED = 'title = "Elsewhere"\naddresses = ["127.0.0.1:9092"]\n'


def file(folder: Path, text: str) -> Path:
    path = folder / "small.toml"
    path.write_text(text)
    return path


def small(folder: Path) -> Chosen:
    return loader.find(str(file(folder, SMALL)))


def test_every_bundled_file_is_valid() -> None:
    assert {"kafka", "reference"} <= set(loader.bundled())
    for name in loader.bundled():
        assert loader.find(name).file.name == name


def test_version_and_number_of_nodes_may_be_requested() -> None:
    assert (loader.find("kafka").version, loader.find("kafka").nodes) == ("4.1.1", 3)
    other = loader.find("kafka@4.3.1/1")
    assert (other.version, other.nodes, other.text) == ("4.3.1", 1, "kafka@4.3.1/1")
    assert loader.find("reference.toml/5").nodes == 5


@pytest.mark.parametrize("text", ["127.0.0.1:9092", "[::1]:9092", "broker.example:1"])
def test_address_is_a_target_of_which_nothing_else_is_known(text: str) -> None:
    scenario = loader.find(text)
    assert (scenario.file.addresses, scenario.file.node, scenario.nodes) == ((text,), None, 0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense", "is no target: give HOST:PORT"),
        ("127.0.0.1:0", "is no target: give HOST:PORT"),
        ("127.0.0.1:99999", "is no target: give HOST:PORT"),
        (":9092", "is no target: give HOST:PORT"),
        ("missing.toml", "cannot be read: No such file"),
        ("kafka/0", "between 1 and 9 nodes"),
        ("reference.toml@7", "comes in no versions; leave @7 out"),
    ],
)
def test_invalid_target_is_rejected_in_one_sentence(text: str, complaint: str) -> None:
    with pytest.raises(TargetError, match=complaint):
        loader.find(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("title = ", "is not valid TOML"),
        ("[node]\ncommand = ['x']\n", "title is missing"),
        ("title = 'x'\n", r"give either \[node\], how a node is started, or addresses"),
        (REACHED + "node = { command = ['x'] }\n", "give either"),
        (SMALL + "nonsense = 1\n", "unknown key node.observer.nonsense|unknown key"),
        (SMALL.replace("nodes = 2", "nodes = 2\nfoo = 1"), "unknown key foo; allowed here: addresses"),
        (
            "title = 'x'\n[node]\ncomand = ['x']\n",
            "unknown key node.comand, did you mean command; allowed here: command, environment",
        ),
        (SMALL.replace("[node]", "[node]\nrestart = 'x'"), "unknown key node.restart"),
        (SMALL.replace("{peers}", "{pears}"), r"node.command has the placeholder \{pears\}; known there: address"),
        (SMALL.replace(":{value}", ":{worth}"), r"node.setting has the placeholder \{worth\}"),
        (SMALL.replace("={value}", "={worth}"), r"node.feature has the placeholder \{worth\}"),
        (SMALL.replace('"broker.json"', '"../broker.json"'), "give a name without a folder"),
        (SMALL.replace("nodes = 2", "nodes = 2\nlacks = ['magic']"), "lacks has 'magic'; allowed: topics, replicas"),
        (SMALL.replace("nodes = 2", "provider = 'nobody'"), "provider is 'nobody'; allowed: kafka"),
        (SMALL.replace('"peers"', '"ropes"'), "node.links is 'ropes'; allowed: none, peers, hosts"),
        (REACHED.replace(":9092", ""), "addresses has '127.0.0.1', which is no HOST:PORT"),
        (REACHED + "[commands]\nexplode = 'x'\n", "unknown key commands.explode"),
        (REACHED + "[commands]\npause = 'x'\n", "commands.resume is missing"),
        (REACHED + "[commands]\nkill = 'x'\n", "commands.start is missing"),
        (
            REACHED + "[commands]\nstart = 'x {port}'\n",
            r"commands.start has the placeholder \{port\}; known there: address, id",
        ),
        ("title = 'x'\n[node]\ncommand = ['x']\n[commands]\nstart = 'x'\n", r"\[commands\] need addresses"),
    ],
)
def test_unknown_or_missing_keys_are_rejected(tmp_path: Path, text: str, complaint: str) -> None:
    if "node.observer.nonsense" in complaint:
        text = SMALL.replace("[node.observer]", "[node.observers]")
        complaint = "unknown key node.observers"
    with pytest.raises(TargetError, match=complaint):
        loader.find(str(file(tmp_path, text)))


def test_commands_name_as_many_nodes_as_there_are_addresses(tmp_path: Path) -> None:
    path = file(tmp_path, REACHED + "[commands]\nstart = 'up {id}'\nkill = 'kill {address}'\n")
    scenario = loader.find(str(path))
    assert scenario.nodes == 1
    assert scenario.file.commands is not None
    assert scenario.file.commands.kill == "kill {address}"
    with pytest.raises(TargetError, match="has 1 addresses; leave /2 out"):
        loader.find(f"{path}/2")


def test_node_gets_its_own_ports_folder_files_and_peers(tmp_path: Path) -> None:
    plan = ClusterLayout(small(tmp_path), tmp_path, settings=lambda node: {"a.b": f"{node}"})
    first, second = plan.lay_out({(0, 1): "127.0.0.1:7"})
    address = f"127.0.0.1:{first.port}"
    words = ["broker", "--at", address, "--set", "a.b:0", "-a", "-b", "--peers", f"0={address},1=127.0.0.1:7"]
    assert list(first.command) == words
    assert second.command[-1] == f"0={address},1=127.0.0.1:{second.port}"
    assert len({port for ports in plan.ports for port in ports.values()}) == 4
    written = f'{{"admin": {plan.ports[0]["admin"]}, "role": "voter 0"}}'
    assert first.files == {tmp_path / "node-0" / "broker.json": written}
    assert first.data == tmp_path / "node-0" / "data"


def test_observer_and_the_caller_have_arguments_their_own(tmp_path: Path) -> None:
    plan = ClusterLayout(small(tmp_path), tmp_path, voters=1, total=2, words={"flags": "-c"})
    voter, observer = plan.lay_out()
    (text,), (also,) = voter.files.values(), observer.files.values()
    assert '"role": "voter 0"' in text
    assert '"role": "observer"' in also
    assert "-c" in voter.command


@pytest.mark.live
def test_node_is_prepared_with_files_or_fails_with_reason(tmp_path: Path) -> None:
    prepared = SMALL.replace('["true"]', '["cp", "{folder}/broker.json", "{data}"]')
    node = ClusterLayout(loader.find(str(file(tmp_path, prepared))), tmp_path).lay_out()[1]
    node.make()
    assert '"role": "voter 1"' in node.data.read_text()
    for words, complaint in (
        ('["sh", "-c", "echo no disk; false"]', "node-0 could not be prepared: no disk"),
        ('["/no/such/program"]', "/no/such/program cannot be run: No such file"),
    ):
        chosen = loader.find(str(file(tmp_path, SMALL.replace('["true"]', words))))
        with pytest.raises(TargetError, match=complaint):
            ClusterLayout(chosen, tmp_path).lay_out()[0].make()


def test_kafka_reads_names_from_a_hosts_file_of_each_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.targets.providers.kafka._fetched", lambda folder, *_: f"jars of {folder.name}")
    plan = ClusterLayout(
        loader.find("kafka@4.3.1"), tmp_path, voters=3, total=4, settings=lambda _: {"num.partitions": "7"}
    )
    nodes = plan.lay_out({(3, 0): "127.0.9.1"})
    hosts, properties = (nodes[3].files[tmp_path / "node-3" / name] for name in ("hosts", "server.properties"))
    assert "127.0.9.1 node-0\n127.0.0.1 node-1\n" in hosts
    assert "process.roles=broker\n" in properties
    assert "num.partitions=7\n" in properties
    assert f"0@node-0:{plan.ports[0]['controller']}" in properties
    assert "CONTROLLER://" not in properties
    assert any(word.startswith("jars of kafka-4.3.1:") for word in nodes[0].command)
    assert "-Xmx400m" in nodes[0].command


@pytest.mark.parametrize(
    ("name", "is_prepared", "words"),
    [
        ("kafka", True, ["--feature", "transaction.version=1"]),
        ("reference", False, ["--config", "crucible.bootstrap.transaction.version=1"]),
    ],
)
def test_features_begin_at_the_levels_of_a_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_prepared: bool, words: list[str]
) -> None:
    monkeypatch.setattr("bench.targets.providers.kafka._fetched", lambda *_: "jars")
    for levels in ({"transaction.version": "1"}, {}):
        for node in ClusterLayout(loader.find(name), tmp_path, features=levels).lay_out():
            arguments = [*(node.prepare if is_prepared else node.command)]
            found = [at for at in range(len(arguments)) if arguments[at : at + 2] == words]
            assert bool(found) == bool(levels)


@pytest.mark.live
def test_version_that_maven_does_not_find_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = tmp_path / "mvn"
    said = "[ERROR] Failed to execute goal x: Could not find artifact kafka:jar:9.9.9 in central"
    maven.write_text(f"#!/bin/sh\necho '{said}'\nexit 1\n")
    maven.chmod(0o755)
    (tmp_path / "java").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr("bench.targets.providers.kafka.CACHE", tmp_path / "cache")
    with pytest.raises(TargetError, match=r"could not fetch Apache Kafka 9.9.9: .*Could not find artifact"):
        ClusterLayout(loader.find("kafka@9.9.9"), tmp_path).lay_out()
    assert not list((tmp_path / "cache").iterdir())
