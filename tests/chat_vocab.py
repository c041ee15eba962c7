"""A made-up model that chats: its vocabulary, its template and answers as it would write them."""

from pathlib import Path
from typing import Any

from tests.tiny_vocab import TinyVocab

TEMPLATE = (Path(__file__).parent / "data" / "thinker.jinja").read_text()
TOOL_CALL, TOOL_CALL_END, THINK = 258, 259, 260

ASKED = [{"role": "user", "content": "How is the weather?"}]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}},
]
THOUGHT, SAID = "I look it up.", "Let me see."
ARGUMENTS = ['{"city": "Oslo"}', "{}"]
TRANSCRIPT = (
    f"{THOUGHT}\n</think>\n\n{SAID}\n"
    f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS[0]}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "get_time", "arguments": {ARGUMENTS[1]}}}\n</tool_call>'
)
SPECIAL = {256: b"<s>", 257: b"</s>", TOOL_CALL: b"<tool_call>", TOOL_CALL_END: b"</tool_call>", THINK: b"<think>"}


class ChatVocab(TinyVocab):
    """Byte tokens, and control tokens for the marks of calls and thinking."""

    special = SPECIAL

    def __init__(self, template: str = TEMPLATE) -> None:
        super().__init__()
        self.template = template

    def chat_template(self, name: str | None = None) -> str | None:
        """The model's template."""
        return None if name else self.template


def pieces(text: str, size: int = 3) -> list[str]:
    """`text` as tokens of `size` characters."""
    return [text[start : start + size] for start in range(0, len(text), size)]
