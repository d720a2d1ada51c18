"""Runs a program of Apache Kafka's jars in a Java process of its own."""

import subprocess
from collections.abc import Sequence

from bench.peers.jars import kafka_classpath
from bench.peers.node import PeerError


class ToolError(PeerError):
    """A Java program failed or hung. The message is what it printed."""


def java_command(
    main_class: str, words: Sequence[str], options: Sequence[str] = (), classpath: str | None = None
) -> list[str]:
    """Returns the command that starts ``main_class`` with ``words``. ``options`` are those of the virtual machine. The
    default ``classpath`` is that of Kafka's server and tools.

    Raises PeerError when Java or the jars cannot be had.
    """
    return ["java", *options, "-XX:-UsePerfData", "-cp", classpath or kafka_classpath(), main_class, *words]


def run_java(
    main_class: str, words: Sequence[str], limit_s: float, options: Sequence[str] = (), stdin: str = ""
) -> tuple[str, str]:
    """Runs the program to its end and returns its standard output and standard error.

    Raises ToolError when it fails or does not end within ``limit_s``, and PeerError as ``java_command`` does.
    """
    command = java_command(main_class, words, options)
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as expired:
        raise ToolError(f"{main_class} did not end within {limit_s:g} s") from expired
    errors = _without_logging(done.stderr)
    if done.returncode != 0:
        raise ToolError(f"{main_class} failed: {done.stdout}{errors}".strip())
    return done.stdout, errors


def _without_logging(text: str) -> str:
    """Removes what SLF4J says at each start, because Kafka's jars come without a logging back end."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("SLF4J"))
