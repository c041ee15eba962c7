"""Made-up conversations, rendered to see how a template writes the model's part of them."""

import json
import re
from collections.abc import Callable
from typing import Any

Render = Callable[[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]], str]
"""Messages, tools and variables (`add_generation_prompt` and `enable_thinking` among them) to a prompt."""

ASKED, ANSWERED, THOUGHT = "ASKED-by-the-user", "ANSWERED-by-the-model", "THOUGHT-by-the-model"
FIRST, SECOND = "FIRSTfunction", "SECONDfunction"
KEY_A, KEY_B = "KEYalpha", "KEYbeta"
VALUE_A, VALUE_B = "VALUEalpha", "VALUEbeta"
ID_A, ID_B = "callAA001", "callBB002"
ARGUMENTS = {KEY_A: VALUE_A, KEY_B: VALUE_B}
MARK = re.compile(r"<[^<>\n]{1,80}>|\[[^\[\]\n\"{}]{1,80}\]")


def tool(name: str) -> dict[str, Any]:
    """A function with two string parameters."""
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string", "description": "A text."} for key in ARGUMENTS},
        "required": [],
    }
    return {"type": "function", "function": {"name": name, "description": "A function.", "parameters": parameters}}


TOOLS = [tool(FIRST), tool(SECOND)]
USER = {"role": "user", "content": ASKED}


class Trial:
    """A template under trial."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._as_text = False  # arguments are rendered from their JSON text

    def prompt(self, turns: list[dict[str, Any]], tools: bool = False, **variables: Any) -> str | None:
        """The prompt; None if the template refuses."""
        try:
            return self._render([USER, *turns], TOOLS if tools else [], {"enable_thinking": True, **variables})
        except Exception:  # whatever a template and its sandbox may raise
            return None

    def opening(self, tools: bool = False, thinking: bool = True) -> str:
        """What a template writes to make the model answer."""
        without = self.prompt([], tools, enable_thinking=thinking, add_generation_prompt=False)
        prompt = self.prompt([], tools, enable_thinking=thinking, add_generation_prompt=True)
        if without is None or prompt is None:
            return ""
        return prompt[len(whole_marks(shared_start(without, prompt))) :]

    def turn(self, message: dict[str, Any], tools: bool = False) -> str | None:
        """What a template writes for `message`, without the header of the turn that every prompt ends in."""
        before = self.prompt([], tools, add_generation_prompt=False)
        after = self.prompt([{"role": "assistant", **message}], tools, add_generation_prompt=False)
        if before is None or after is None:
            return None
        text = after[len(whole_marks(shared_start(before, after))) :]
        return without_opening(text, self.opening(tools))

    def answer(self, **more: Any) -> str | None:
        """The turn of a plain answer."""
        return self.turn({"content": ANSWERED, **more})

    def calls(self, *calls: dict[str, Any], **more: Any) -> str | None:
        """The turn of tool calls."""
        text = None if self._as_text else self._calls(calls, more, as_text=False)
        if text is None or FIRST not in text or KEY_A not in text:
            as_text = self._calls(calls, more, as_text=True)
            self._as_text = self._as_text or (as_text is not None and KEY_A in as_text)
            text = as_text if as_text is not None else text
        return text

    def _calls(self, calls: tuple[dict[str, Any], ...], more: dict[str, Any], as_text: bool) -> str | None:
        if as_text:
            calls = tuple(
                call | {"function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}}
                for call in calls
            )
        for content in ("", None):
            text = self.turn({"content": content, "tool_calls": list(calls), **more}, tools=True)
            if text is not None and calls[0]["function"]["name"] in text:
                return text
        return None


class Shown(dict[str, Any]):
    """Arguments that do not show when a template prints them as if they were text."""

    def __str__(self) -> str:
        return "not-an-object"

    __repr__ = __str__


def call(name: str, id: str) -> dict[str, Any]:
    """A call of a function with both its arguments."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": Shown(ARGUMENTS)}}


def shared_start(a: str, b: str) -> str:
    """The longest common prefix."""
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:n]


def shared_end(a: str, b: str) -> str:
    """The longest common suffix."""
    return shared_start(a[::-1], b[::-1])[::-1]


def without_opening(text: str, opening: str) -> str:
    """`text` without what it shares with a turn's `opening`, of which the prompt before may have a part."""
    starts = [0, *(found.start() for found in MARK.finditer(opening))]
    for start in starts:
        if opening[start:] and text.startswith(opening[start:]):
            return text[len(opening) - start :]
    return text[len(whole_marks(shared_start(opening, text))) :]


def whole_marks(text: str) -> str:
    """`text` without the beginning of a mark at its end."""
    start = max(text.rfind("<"), text.rfind("["))
    return text[:start] if start > max(text.rfind(">"), text.rfind("]")) else text


def from_mark(text: str) -> str:
    """`text` from its first opening bracket on, so that it begins where a mark does."""
    found = re.search(r"[<\[]", text)
    return text[found.start() :] if found else ""


def to_mark(text: str) -> str:
    """`text` up to its last closing bracket, so that it ends where a mark does."""
    end = max(text.rfind(">"), text.rfind("]"))
    return text[: end + 1]


def first_mark(text: str) -> str:
    """The first mark in `text`."""
    found = MARK.search(text)
    return found.group() if found else ""


def last_mark(text: str) -> str:
    """The last mark in `text`, if only white space follows it."""
    marks = list(MARK.finditer(text))
    return marks[-1].group() if marks and not text[marks[-1].end() :].strip() else ""


def closing(mark: str) -> str:
    """The mark that closes what `mark` opens, by the habits of markup."""
    for opens, closes in (("START", "END"), ("start", "end"), ("BEGIN", "END"), ("begin", "end")):
        if opens in mark:
            return mark.replace(opens, closes)
    return f"{mark[0]}/{mark[1:]}"
