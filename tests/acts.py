"""Says of a test which request fields it shows to act, so that none can be forgotten (tests/test_fields_act.py)."""

import time
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import numpy as np

from api.schema import Schema
from ipc.messages import Delta, Error
from tests.step_engine import Stepped

Test = TypeVar("Test", bound=Callable[..., Any])


def acts(*names: str) -> Callable[[Test], Test]:
    """The decorated test shows what the request fields `names` do to a generation or its answer."""

    def mark(test: Test) -> Test:
        test.__dict__["acts"] = names
        return test

    return mark


def shown(*modules: ModuleType) -> set[str]:
    """All fields that the tests of `modules` show to act."""
    tests = [value for module in modules for value in vars(module).values() if isinstance(value, FunctionType)]
    return {name for test in tests for name in getattr(test, "acts", ())}


class Asked(Stepped):
    """An engine in the test's own process that takes request bodies, as the HTTP workers read them."""

    schema: Schema

    def ask(self, body: dict[str, Any], prompt: list[int]) -> int:
        """Submit one request; returns its task's id."""
        params = self.schema.read({"temperature": 0, "n_predict": 4, "stream": True, **body})
        (task,) = params.tasks(np.array(prompt))
        self._ids += 1
        task.id = self._ids
        self.server.incoming.append((b"c", task))
        return task.id

    def answer(self, body: dict[str, Any], prompt: list[int]) -> int:
        """Submit one request and run it to its end."""
        task = self.ask(body, prompt)
        deadline = time.monotonic() + 60
        while not self.finals(task):  # while a constraint compiles, nothing else keeps the engine busy
            assert time.monotonic() < deadline, "not done after a minute"
            self.engine.step()
        return task

    def deltas(self, task: int) -> list[Delta]:
        """The text of a task as it came."""
        return [result for result in self.results(task) if isinstance(result, Delta)]

    def error(self, task: int) -> Error:
        """What a task that failed got."""
        error = self.final(task).error
        assert error is not None, "it did not fail"
        return error
