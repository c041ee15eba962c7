"""Helpers of the parser's tests: answers in pieces, and what they add up to."""

import random

from api.parse.events import Message
from api.parse.format import Format
from api.parse.layout import Ask
from api.parse.stream import Parser

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "opts": {"type": "object", "properties": {"unit": {"type": "string"}, "tags": {"type": "array"}}},
        "list": {"type": "array", "items": {"type": "string"}},
        "either": {"type": ["string", "number"]},
    },
    "required": ["city"],
}
TOOLS = {"get_weather": WEATHER, "ping": {"type": "object", "properties": {}}}
ASK = Ask(tools=TOOLS, calls=True)


def plain(message: Message) -> tuple[str, str, list[tuple[str, str]]]:
    """A message without its calls' ids."""
    return message.reasoning, message.content, [(call.name, call.arguments) for call in message.calls]


def cut_randomly(text: str, rng: random.Random) -> list[str]:
    """`text` in pieces, of tokens' sizes or others."""
    size = rng.choice((1, 3, 10, 40))
    pieces = []
    while text:
        n = rng.randint(1, size)
        pieces.append(text[:n])
        text = text[n:]
    return pieces


def stream(format: Format, pieces: list[str], prompt: str = "", ask: Ask = ASK, cut: bool = False) -> Message:
    """What the pieces add up to."""
    parser = Parser(format, ask, prompt)
    message = Message()
    for piece in pieces:
        message.add(parser.feed(piece))
    return message.add(parser.finish(cut))
