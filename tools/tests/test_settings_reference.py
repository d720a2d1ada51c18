"""The page of all settings says what their declarations say."""

from tools.settings_reference import PAGE, page


def test_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.settings_reference"
