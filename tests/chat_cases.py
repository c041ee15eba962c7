"""Conversations that every family of templates is tried with, and how to read a family's files."""

from functools import cache
from pathlib import Path
from typing import Any

from api.template import ChatTemplates, Tokens

FOLDER = Path(__file__).parent / "templates"
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.jinja"))

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "The time in a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name."},
                },
                "required": ["city"],
            },
        },
    }
]
SYSTEM = {"role": "system", "content": "Be brief."}
HELLO = {"role": "user", "content": "Hello"}
GREETING = {"role": "assistant", "content": "Hi!"}
QUESTION = {"role": "user", "content": "What time is it in Rome?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "get_time", "arguments": '{"city": "Rome"}'},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call00001", "content": [{"type": "text", "text": "12:30"}]}
ANSWER = {"role": "assistant", "content": "Half past twelve.", "reasoning_content": "The tool says 12:30."}

CASES: dict[str, dict[str, Any]] = {
    "system": {"messages": [SYSTEM, HELLO]},
    "turns": {"messages": [SYSTEM, HELLO, GREETING, QUESTION]},
    "tools": {"messages": [SYSTEM, QUESTION], "tools": TOOLS},
    "result": {"messages": [QUESTION, CALL, RESULT], "tools": TOOLS},
    "reasoning": {"messages": [QUESTION, ANSWER, HELLO]},
    "prefill": {"messages": [QUESTION, ANSWER]},
    "thought": {"messages": [QUESTION, {**ANSWER, "content": ""}]},
}


@cache
def templates(family: str) -> ChatTemplates:
    """A family's template, for a model with Llama's BOS and EOS, which its tokenizer does not add."""
    return ChatTemplates.of((FOLDER / f"{family}.jinja").read_text(), tokens=Tokens("<s>", "</s>"))


def expected(family: str) -> dict[str, str]:
    """The prompts of `CASES` as a family's documentation has them."""
    sections = (FOLDER / f"{family}.txt").read_text().split("=== ")[1:]
    return {name: text.removesuffix("¶\n") for name, text in (section.split("\n", 1) for section in sections)}
