"""Says of a test which request fields it shows to act, so that none can be forgotten (tests/test_fields_act.py)."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])


def acts(*names: str) -> Callable[[Test], Test]:
    """The decorated test shows what the request fields `names` do to a generation or its answer."""

    def mark(test: Test) -> Test:
        test.__dict__["acts"] = names
        return test

    return mark


def shown(*modules: ModuleType) -> set[str]:
    """All fields that the tests of `modules` show to act."""
    return {name for module in modules for value in vars(module).values() for name in getattr(value, "acts", ())}
