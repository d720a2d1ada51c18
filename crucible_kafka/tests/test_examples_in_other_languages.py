"""The examples of the control API in docs/examples: their tests pass, and fail where the rule cannot fire."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 500
EXAMPLES = {
    "go-franz-go": ("go test -count=1 ./...", "orders_test.go"),
    "java-kafka-clients": ("mvn -q -B test", "src/test/java/orders/OrdersTest.java"),
    "node-kafkajs": ("npm install --no-audit --no-fund && npm test", "orders.test.js"),
}
"""The command of each, as in its README but for what it prints, and the file with the rule."""

pytestmark = [pytest.mark.peer, pytest.mark.timeout(2 * LIMIT_S + 60)]


def played(folder: Path, command: str) -> "subprocess.CompletedProcess[str]":
    """Run an example's tests. The command ``crucible`` is that of this clone."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    crucible = commands / "crucible"
    crucible.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m crucible_kafka "$@"\n')
    crucible.chmod(0o755)
    variables = {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_passes_and_fails_when_its_rule_never_fires(example: str, tmp_path: Path) -> None:
    command, rule_file = EXAMPLES[example]
    if shutil.which(command.split()[0]) is None:
        pytest.skip(f"{command.split()[0]} is not installed")
    folder = tmp_path / example
    shutil.copytree(
        ROOT / "docs" / "examples" / example, folder, ignore=shutil.ignore_patterns("node_modules", "target")
    )
    done = played(folder, command)
    assert done.returncode == 0, done.stdout + done.stderr
    source = folder / rule_file
    other = source.read_text().replace('"orders-*"', '"others-*"')
    assert other != source.read_text()
    source.write_text(other)
    done = played(folder, command)
    assert done.returncode != 0
    assert "never fired" in done.stdout + done.stderr
