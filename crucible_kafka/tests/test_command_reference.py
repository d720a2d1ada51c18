"""The page of all commands says what their help says."""

from crucible_kafka.cli import main
from crucible_kafka.command_reference import PAGE, page


def test_page_of_commands_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(main), "run: python -m crucible_kafka.command_reference"
