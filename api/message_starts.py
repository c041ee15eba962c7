"""Where the user's messages begin in a prompt: good places to go on from when a conversation changes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

NEWEST = 8  # messages that are looked for


def message_starts(
    prompt: str, tokens: npt.NDArray[np.int32], messages: Sequence[Any], lengths: npt.NDArray[np.int64]
) -> list[int]:
    """Positions in `tokens` of the newest user messages, in order. Those that the template changed are left out.

    `lengths`: bytes of each token of the vocabulary. A position may be off where tokens do not spell the prompt
    byte by byte; every position is a valid one.
    """
    ends = np.cumsum(lengths[tokens])
    n_bytes, tail, place = (int(ends[-1]) if len(ends) else 0), 0, len(prompt)
    found: list[int] = []
    texts = [text for message in messages if (text := text_of(message))]
    for text in reversed(texts[-NEWEST:]):
        start = prompt.rfind(text, 0, place)
        if start < 0:
            continue
        tail += len(prompt[start:place].encode("utf-8", "surrogatepass"))
        place = start
        found.append(int(np.searchsorted(ends, n_bytes - tail, side="right")))
    return found[::-1]


def text_of(message: Any) -> str:
    """The first text of a user's message, "" for others."""
    if message.get("role") != "user":
        return ""
    content = message.get("content")
    if isinstance(content, list):
        content = next((part.get("text") for part in content if part.get("type") == "text"), "")
    return content.strip() if isinstance(content, str) else ""
