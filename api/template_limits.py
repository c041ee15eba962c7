"""What a chat template may use up: checked at every statement and before every operation that can multiply text.

A template comes with a model file, so it is as trusted as a download. One that loops or doubles strings without end
must fail in seconds and must not take the worker with it. Python threads cannot be stopped from outside; the
compiled template therefore asks, at each of its statements, whether it may go on.
"""

import re
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any

from jinja2.runtime import Context
from msgspec import Struct

MAX_NUMBER = 1_000_000  # counts, widths and precisions in calls
MAX_ITEMS = 1_000_000  # of a list that is built by adding
MAX_BITS = 4096  # of a whole number
LONG_WIDTH = re.compile(r"\d{7}|\*")


class Limits(Struct, frozen=True):
    """Bounds of one rendering."""

    seconds: float = 5.0
    chars: int = 16_000_000


class LimitExceeded(Exception):
    """The template wanted more than its limits allow."""


class LimitedContext(Context):
    """jinja's context of one rendering, which also knows the limits of it."""

    deadline = float("inf")
    limits = Limits()

    def start(self, limits: Limits) -> None:
        """The clock runs from here."""
        self.limits = limits
        self.deadline = monotonic() + limits.seconds

    def tick(self) -> None:
        """Called by the compiled template before each statement."""
        if monotonic() > self.deadline:
            raise LimitExceeded(f"rendering took longer than {self.limits.seconds:g} s")

    def ticked(self, items: Iterable[Any]) -> Iterator[Any]:
        """`items`, with a tick for each."""
        for item in items:
            self.tick()
            yield item

    def concat(self, parts: tuple[Any, ...]) -> str:
        """jinja's `~`."""
        texts = [str(part) for part in parts]
        self.allow_text(sum(map(len, texts)))
        return "".join(texts)

    def allow_text(self, chars: int) -> None:
        """Raise if a text of `chars` characters is too long."""
        if chars > self.limits.chars:
            raise LimitExceeded(f"a text of more than {self.limits.chars} characters")

    def allow_binop(self, operator: str, left: Any, right: Any) -> None:
        """Raise if the result of `left operator right` could be too large."""
        match operator, left, right:
            case "%", str(), _:
                self.allow_format(left, "%", right if isinstance(right, tuple | dict) else (right,))
            case "+", str(), str():
                self.allow_text(len(left) + len(right))
            case "+", list() | tuple(), list() | tuple():
                allow_count(len(left) + len(right), MAX_ITEMS)
            case "*", str(), int():
                self.allow_text(len(left) * right)
            case "*", int(), str():
                self.allow_text(len(right) * left)
            case "*", list() | tuple(), int():
                allow_count(len(left) * right, MAX_ITEMS)
            case "*", int(), list() | tuple():
                allow_count(len(right) * left, MAX_ITEMS)
            case "*", int(), int():
                allow_count(left.bit_length() + right.bit_length(), MAX_BITS)
            case "**", int(), int():
                allow_count(left.bit_length() * right, MAX_BITS)

    def allow_format(self, template: str, mark: str, values: tuple[Any, ...] | dict[Any, Any]) -> None:
        """Raise if filling `values` in `template`, whose fields begin with `mark`, could make too long a text."""
        if LONG_WIDTH.search(template):
            raise LimitExceeded("a format string with a very large or computed width")
        items = values.values() if isinstance(values, dict) else values
        longest = max((size(value) for value in items), default=0)
        self.allow_text(len(template) + template.count(mark) * longest)

    def allow_method(self, text: str, method: str, args: tuple[Any, ...]) -> None:
        """Raise if `text.method(*args)` could make too long a text."""
        match method, args:
            case "replace", (str() as old, str() as new, *_):
                self.allow_text(len(text) + text.count(old) * len(new))
            case "join", (list() | tuple() as items,):
                self.allow_text(sum(map(size, items)) + len(items) * len(text))
            case "format" | "format_map", _:
                self.allow_format(text, "{", args)
            case "translate", _:
                raise LimitExceeded("str.translate")


def allow_count(count: int, limit: int) -> None:
    """Raise if `count` is above `limit`."""
    if count > limit:
        raise LimitExceeded(f"a result of size {count if count < 10**12 else 'far'} above {limit}")


def allow_numbers(values: Iterable[Any]) -> None:
    """Raise if one of the arguments of a call is an absurd number."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise LimitExceeded("a number above 1,000,000 as an argument")


def size(value: Any) -> int:
    """About how many characters `value` takes in a text."""
    return len(value) if isinstance(value, str) else 32
