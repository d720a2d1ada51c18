"""The sample projects in docs/examples: their tests pass with the pytest plugin, and are short enough to be read."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ("confluent", "kafka-python", "aiokafka")
TESTS = 5
HOOK = 'pytest_plugins = ["async_tests"]\n'
"""The plugin that runs coroutines where pytest-asyncio is not installed."""
MAX_LINES = 15
LIMIT_S = 110


def folder_of(client: str) -> Path:
    return ROOT / "docs" / "examples" / f"pytest-{client}"


@pytest.mark.live
@pytest.mark.rotated(3)
@pytest.mark.timeout(LIMIT_S + 10)
@pytest.mark.parametrize("client", CLIENTS)
def test_tests_of_a_sample_project_pass(client: str) -> None:
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "crucible_kafka.pytest_plugin",
        "-p",
        "no:cacheprovider",
        str(folder_of(client)),
    ]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{TESTS} passed" in done.stdout


@pytest.mark.live
@pytest.mark.nightly
@pytest.mark.timeout(2 * LIMIT_S)
def test_coroutines_pass_with_pytest_asyncio_instead_of_the_hook(tmp_path: Path) -> None:
    """It is none of this project's dependencies, and would run every coroutine of this project's own tests, too."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "packages")]
    subprocess.run([*pip, "pytest-asyncio"], check=True, timeout=LIMIT_S)
    tests = (folder_of("aiokafka") / "test_aiokafka.py").read_text()
    assert tests.count(HOOK) == 1
    (tmp_path / "test_aiokafka.py").write_text(tests.replace(HOOK, ""))
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "crucible_kafka.pytest_plugin", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path / "packages")])}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{TESTS} passed" in done.stdout


@pytest.mark.parametrize("client", CLIENTS)
def test_each_test_of_a_sample_project_is_short(client: str) -> None:
    tree = ast.parse((folder_of(client) / f"test_{client.replace('-', '_')}.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = {
        function.name: function.end_lineno - function.lineno + 1
        for function in functions
        if function.name.startswith("test_") and function.end_lineno
    }
    assert len(lines) == TESTS
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}
