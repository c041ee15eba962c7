"""A whole server for the tests with real clients: a model that thinks, if it is asked to, a thought of ours."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tests.server import Server

THOUGHT = "I look it up."  # what the server makes the model think
EMOJI = "hi 😀👨‍👩‍👧 ok"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
QUESTION = "How is the weather in Oslo?"
TURN: Any = {"role": "user", "content": QUESTION}
GREEDY = {"temperature": 0}
THINK = {"chat_template_kwargs": {"enable_thinking": True}}
CONTEXT = 512  # of one slot
LIMIT = 80  # tokens of one answer


class Person(BaseModel):
    """An answer with a form."""

    name: str
    adult: bool


def thinking_server(model_path: Path, *args: str) -> Server:
    """The server; use it in a `with`."""
    template = ["--chat-template-file", str(Path(__file__).parent / "data" / "thinker.jinja"), "--reasoning", "off"]
    thought = ["--reasoning-budget", "0", "--reasoning-budget-message", THOUGHT]
    size = ["-c", str(2 * CONTEXT), "-np", "2", "-n", str(LIMIT)]
    return Server(["-m", str(model_path), *size, *template, *thought, *args])


def forced(text: str) -> dict[str, str]:
    """What makes the model say `text`."""
    return {"grammar": f"root ::= {json.dumps(text, ensure_ascii=False)}"}
