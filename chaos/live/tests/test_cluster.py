"""``crucible cluster`` as a process."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from chaos.live.cluster import ClusterPlan, run_cluster
from chaos.live.probe import probe

pytestmark = pytest.mark.live

CODE = """
import sys
from pathlib import Path
from chaos.live.cluster import ClusterPlan, run_cluster
sys.exit(run_cluster(ClusterPlan(Path(sys.argv[1]), toxiproxy=True, restart=True)))
"""


def test_a_killed_node_is_restarted_behind_the_same_proxy_and_sigterm_ends_all(tmp_path: Path) -> None:
    cluster = subprocess.Popen([sys.executable, "-c", CODE, str(tmp_path / "c")], stdout=subprocess.PIPE)
    assert cluster.stdout is not None
    ready = json.loads(cluster.stdout.readline())
    children = psutil.Process(cluster.pid).children()
    assert len(children) == 2
    assert ready["bootstrap_servers"] not in ready["nodes"]
    assert probe(ready["bootstrap_servers"]).outcome == "answered"

    (node,) = (each for each in children if "reference_broker.serve.main" in " ".join(each.cmdline()))
    node.kill()
    deadline = time.monotonic() + 15
    while probe(ready["bootstrap_servers"], limit_s=0.3).outcome != "answered" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert probe(ready["bootstrap_servers"]).outcome == "answered"

    children = psutil.Process(cluster.pid).children()
    cluster.send_signal(signal.SIGTERM)
    assert cluster.wait(20) == 0
    cluster.stdout.close()
    assert not any(each.is_running() for each in children)


def test_more_than_one_node_is_refused_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cluster(ClusterPlan(tmp_path, nodes=3)) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert "--nodes is 3" in told[0]
