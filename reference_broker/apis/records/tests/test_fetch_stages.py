"""The methods of a fetch enter the stages that the table of ``apis/records/fetch.py`` says."""

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


def methods_by_stage_in_code() -> dict[FetchStage, set[str]]:
    (fetch_class,) = ast.parse(inspect.getsource(Fetch)).body
    assert isinstance(fetch_class, ast.ClassDef)
    methods: dict[FetchStage, set[str]] = {}
    for method in fetch_class.body:
        if isinstance(method, ast.FunctionDef):
            for stage in entered_stages(method):
                methods.setdefault(stage, set()).add(method.name)
    return methods


def test_table_of_stages_has_the_methods_that_enter_them() -> None:
    methods: dict[FetchStage, set[str]] = {}
    for following in NEXT_STAGES.values():
        for stage, names in following.items():
            methods.setdefault(stage, set()).update(names)
    assert methods == methods_by_stage_in_code()


def test_stages_that_are_over_have_no_next_one() -> None:
    assert {stage for stage, following in NEXT_STAGES.items() if not following} == {
        stage for stage in NEXT_STAGES if stage.is_over
    }
