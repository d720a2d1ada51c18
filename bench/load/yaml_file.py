"""Strict reading of YAML files: workloads, and driver files of OpenMessaging Benchmark.

YAML's own specification wants the keys of a mapping to differ. PyYAML keeps the last one without a word, so a benchmark
would run with another value than the one that its reader sees first.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


class YamlError(Exception):
    """The message is one sentence that names the file."""


def read_yaml(path: Path) -> Any:
    """:raises YamlError: the file cannot be read, is not valid YAML, or gives a key twice."""
    try:
        text = path.read_text(encoding="utf-8")
        for key, first_line, line in _repeated_keys(yaml.compose(text, yaml.SafeLoader)):
            where = f"in line {line}" if line == first_line else f"in lines {first_line} and {line}"
            raise YamlError(f"{path.name}: the key {key} is given twice, {where}; leave one of them out.")
        return yaml.safe_load(text)
    except OSError as error:
        raise YamlError(f"{path}: cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise YamlError(f"{path.name}: is not valid YAML: {' '.join(str(error).split())}.") from error


def _repeated_keys(root: yaml.Node | None) -> Iterator[tuple[str, int, int]]:
    """Yield each key that its mapping has already, with the lines of both, from 1. Aliases are visited once."""
    remaining, visited = [root] if root is not None else [], set[yaml.Node]()
    while remaining:
        node = remaining.pop()
        if node in visited:
            continue
        visited.add(node)
        if isinstance(node, yaml.SequenceNode):
            remaining.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            lines: dict[tuple[str, str], int] = {}
            for key, value in node.value:
                remaining.append(value)
                if not isinstance(key, yaml.ScalarNode):
                    continue
                name, line = (key.tag, key.value), key.start_mark.line + 1
                if name in lines:
                    yield key.value, lines[name], line
                lines[name] = line
