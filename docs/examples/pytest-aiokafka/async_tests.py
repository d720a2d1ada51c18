"""Runs coroutines that are tests, as pytest-asyncio does in its mode ``auto``, which makes this file needless."""

import asyncio
import inspect

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
    return True
