"""The stages of a fetch, as the table of ``apis/records/fetch.py`` has them."""

import ast
import inspect

from reference_broker.apis.records import fetch
from reference_broker.apis.records.fetch import NEXT_STAGES, Fetch, FetchStage


def entered_stages(method: ast.FunctionDef) -> set[FetchStage]:
    """Return the stages that a method enters by ``self._enter`` or ``self._end``."""
    return {
        getattr(fetch, call.args[0].id)
        for call in ast.walk(method)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("self._enter", "self._end")
        and isinstance(call.args[0], ast.Name)
        and call.args[0].id.isupper()
    }


def test_methods_enter_the_stages_of_the_table() -> None:
    (fetch_class,) = ast.parse(inspect.getsource(Fetch)).body
    assert isinstance(fetch_class, ast.ClassDef)
    entered = [entered_stages(method) for method in fetch_class.body if isinstance(method, ast.FunctionDef)]
    assert set().union(*entered) == {stage for following in NEXT_STAGES.values() for stage in following}


def test_stages_that_are_over_have_no_next_one() -> None:
    assert {stage for stage, following in NEXT_STAGES.items() if not following} == {
        stage for stage in NEXT_STAGES if stage.is_over
    }
