"""Where a family of templates names or places things differently from the messages of the API.

Recognised by words in the template, so that fine-tunes of a family are served too. Everything that renders a
template goes through here, trial renderings included.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

THOUGHT_FIELDS = ("reasoning", "thinking", "thought")
MUTATIONS = re.compile(r"\.(append|extend|insert|pop)\(")


class Dialect:
    """What one template wants to be told differently."""

    def __init__(self, source: str) -> None:
        self.thought_fields = [name for name in THOUGHT_FIELDS if reads_field(source, name)]
        self.harmony = "<|channel|>" in source and "<|start|>" in source
        self.thinking_blocks = "[THINK]" in source and "'thinking'" in source
        self.gemma4 = "'<|tool_call>call:'" in source
        self.tool_responses = self.gemma4 and "{#- OpenAI Chat Completions:" not in source
        self.ordered_results = "dsml_token" in source and "function_calls" not in source
        self.mutates = MUTATIONS.search(source) is not None

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """`messages` as the template wants them; the originals stay as they are."""
        turns = [self._message(message) for message in messages]
        if self.tool_responses:
            turns = with_tool_responses(turns)
        if self.ordered_results:
            turns = in_call_order(turns)
        return copied(turns) if self.mutates else turns

    def prompt(self, text: str, add_generation_prompt: bool) -> str:
        """The rendered text, mended where the template leaves the model's turn in a state it does not know."""
        if self.harmony and not add_generation_prompt:  # <|return|> ends a conversation, <|end|> a message
            head, mark, tail = text.rpartition("<|return|>")
            text = f"{head}<|end|>{tail}" if mark else text
        if self.gemma4 and add_generation_prompt and text.endswith("<turn|>\n"):
            text += "<|turn>model\n"
        return text

    def _message(self, message: Message) -> Message:
        thought = message.get("reasoning_content")
        if not thought:
            return message
        turn = message | dict.fromkeys(self.thought_fields, thought)
        if self.harmony and turn.get("tool_calls"):
            turn.pop("content", None)  # the template takes the thought or a content, not both
        if self.thinking_blocks and isinstance(thought, str):
            turn = {key: value for key, value in turn.items() if key != "reasoning_content"}
            turn["content"] = [{"type": "thinking", "thinking": thought}, *parts_of(message.get("content"))]
        return turn


def reads_field(source: str, name: str) -> bool:
    """Whether the template reads `message.name`."""
    return re.search(rf"""message(\.{name}\b|\[['"]{name}['"]\])|['"]{name}['"] in message\b""", source) is not None


def parts_of(content: Any) -> list[Any]:
    """A content as a list of parts."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def copied(value: Any) -> Any:
    """`value` with lists and dicts of its own, for templates that change them."""
    if isinstance(value, list):
        return [copied(item) for item in value]
    if isinstance(value, dict) and type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return value


def with_tool_responses(turns: Sequence[Message]) -> list[Message]:
    """Calls, their results and the answer that follows as one message with `tool_responses` (Gemma 4)."""
    merged: list[Message] = []
    current: Message | None = None  # an assistant's calls that still take results or an answer
    for turn in turns:
        if current is not None and turn.get("role") == "tool":
            responses = current.setdefault("tool_responses", [])
            responses.append({"name": called_name(current, len(responses), turn), "response": as_json(turn)})
            continue
        calls = turn.get("tool_calls")
        if current is not None and turn.get("role") == "assistant" and not calls and turn.get("content"):
            current["content"], current = turn["content"], None
            continue
        current = {key: value for key, value in turn.items() if key != "content"} if calls else None
        merged.append(turn if current is None else current)
    return merged


def called_name(message: Message, index: int, result: Message) -> str:
    """The function whose result is number `index` of the message's results."""
    calls = message["tool_calls"]
    name = calls[index]["function"].get("name") if index < len(calls) else None
    return str(name or result.get("tool_call_id") or "")


def as_json(turn: Message) -> Any:
    """A tool's result as the value that its text spells, or else as the text."""
    content = turn.get("content")
    try:
        return json.loads(content) if isinstance(content, str) else content
    except ValueError:
        return content


def in_call_order(turns: Sequence[Message]) -> list[Message]:
    """Each run of tool results in the order of the calls they answer (DeepSeek V4)."""
    order: dict[str, int] = {}
    ordered = list(turns)
    run: list[int] = []

    def settle() -> None:
        results = sorted((ordered[index] for index in run), key=lambda turn: order.get(turn.get("tool_call_id", ""), 0))
        for index, turn in zip(run, results, strict=True):
            ordered[index] = turn
        run.clear()

    for index, turn in enumerate(turns):
        if turn.get("role") == "tool":
            run.append(index)
        elif turn.get("role") != "user":
            settle()
            calls = turn.get("tool_calls") or []
            order = {call["id"]: number for number, call in enumerate(calls) if call.get("id")} or order
    settle()
    return ordered
