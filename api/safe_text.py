"""Text of messages and tools never becomes a control token, whatever it spells.

Before rendering, each control token spelled out in a content is swapped for one private-use character, and a content
that begins or ends with a piece of one is fenced with another; templates pass both through. After rendering the text
is put back, and those places are tokenised as plain text together with what stands around them up to the next real
mark. A request without such text is rendered and tokenised as if nothing of this existed.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from engine.vocab import Vocab

Tokens = npt.NDArray[np.int32]
Message = dict[str, Any]

FIRST_PLACEHOLDER, LAST_PLACEHOLDER = 0x100000, 0x10FFFD  # a private-use plane
PRIVATE = re.compile(f"[{chr(FIRST_PLACEHOLDER)}-{chr(LAST_PLACEHOLDER)}]")
THINKING_TAGS = frozenset(("<think>", "</think>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>"))
ROLES = frozenset(
    ["system", "developer", "user", "assistant", "tool", "function", "ipython", "model", "observation", "context"]
)
UNKNOWN, CONTROL, LSTRIP, RSTRIP = 1, 8, 128, 256  # llama_token_attr
NEVER = re.compile(r"(?!)")
WHITE = " \t\n\v\f\r"


class SafeText(Struct, frozen=True):
    """A rendered prompt; `fences` are the ranges of `text` that control tokens must not touch or (empty) cross."""

    text: str
    fences: tuple[tuple[int, int], ...] = ()


class ControlTexts:
    """How a vocabulary spells its control tokens."""

    def __init__(self, attributes: Mapping[str, int]) -> None:
        self.attributes = attributes
        self.pattern = re.compile(one_of(attributes)) if attributes else NEVER
        self.heads = frozenset(text[:end] for text in attributes for end in range(1, len(text)))
        self.tails = frozenset(text[start:] for text in attributes for start in range(1, len(text)))
        self.longest = max(map(len, attributes), default=0)
        self.taking_after = tuple(text for text, bits in attributes.items() if bits & RSTRIP)
        self.taking_before = tuple(text for text, bits in attributes.items() if bits & LSTRIP)

    @classmethod
    def of(cls, vocab: Vocab) -> "ControlTexts":
        """Those of `vocab`: what `parse_special` makes a difference for."""
        bits = {token: vocab.attributes(token) for token in range(vocab.n_tokens)}
        texts = {vocab.text(token): found for token, found in bits.items() if found & (CONTROL | UNKNOWN)}
        return cls({text: found for text, found in texts.items() if text.strip()})

    def begins(self, text: str) -> bool:
        """Whether `text` ends with the beginning of a control token."""
        return any(text[-length:] in self.heads for length in range(1, min(self.longest, len(text) + 1)))

    def ends(self, text: str) -> bool:
        """Whether `text` begins with the end of a control token."""
        return any(text[:length] in self.tails for length in range(1, min(self.longest, len(text) + 1)))


class Protection:
    """What was swapped in the texts of one request; `inputs` are all of its texts, however nested."""

    def __init__(self, texts: ControlTexts, inputs: Any) -> None:
        self.texts = texts
        self.inputs = inputs
        self.placeholders: dict[str, str] = {}  # by what they stand for; "" is the fence

    @cached_property
    def free(self) -> Iterator[str]:
        """Characters that the request does not contain."""
        found = (PRIVATE.findall(text) for text in strings(self.inputs) if not text.isascii())
        taken = {mark for marks in found for mark in marks}
        return (mark for code in range(FIRST_PLACEHOLDER, LAST_PLACEHOLDER) if (mark := chr(code)) not in taken)

    def placeholder(self, text: str) -> str:
        """The character that stands for `text` in this request."""
        if text not in self.placeholders:
            self.placeholders[text] = next(self.free)
        return self.placeholders[text]

    def swap(self, text: str, keep: frozenset[str] = frozenset()) -> str:
        """`text` without control tokens, except those in `keep`."""
        return self.texts.pattern.sub(lambda found: found[0] if found[0] in keep else self.placeholder(found[0]), text)

    def fence(self, text: str, keep: frozenset[str] = frozenset()) -> str:
        """`swap`, and fences where `text` could make a control token together with its neighbours.

        They stand inside of surrounding white space, which the template may trim.
        """
        core = text.strip()
        start = len(text) - len(text.lstrip())
        left = self.placeholder("") if self.texts.ends(core) else ""
        right = self.placeholder("") if self.texts.begins(core) else ""
        if left or right:
            text = text[:start] + left + core + right + text[start + len(core) :]
        return self.swap(text, keep)

    def role(self, role: str) -> str:
        """`role`; fenced if it is a word that a template could complete to a control token, as in `<|ROLE|>`."""
        if role not in ROLES and any(role in text for text in self.texts.attributes):
            return role + self.placeholder("")
        return self.swap(role)

    def restore(self, text: str) -> SafeText:
        """The rendered `text` as it should read, with the places that must stay plain."""
        if not self.placeholders:
            return SafeText(text)
        meanings = {mark: meaning for meaning, mark in self.placeholders.items()}
        if "\\ud" in text:  # from a template's ASCII-only JSON
            for mark, meaning in meanings.items():
                text = text.replace(json.dumps(mark)[1:-1], mark if meaning else "")
        pieces: list[str] = []
        fences: list[tuple[int, int]] = []
        length = 0
        for piece in re.split(f"([{''.join(meanings)}])", text):
            written = meanings.get(piece, piece)
            if piece in meanings:
                fences.append((length, length + len(written)))
            length += len(written)
            pieces.append(written)
        return SafeText("".join(pieces), tuple(fences))


class SafeInputs(Struct, frozen=True):
    """What a template may be given."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    kwargs: dict[str, Any]
    protection: Protection | None = None

    def restore(self, text: str) -> SafeText:
        """What a rendering of these inputs means."""
        return self.protection.restore(text) if self.protection else SafeText(text)


class TextGuard:
    """Protects the texts of requests to one model."""

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab

    @cached_property
    def texts(self) -> ControlTexts:
        """The vocabulary's control tokens; read once, some 50 ms."""
        return ControlTexts.of(self.vocab)

    def protect(self, messages: list[Message], tools: list[dict[str, Any]], kwargs: Mapping[str, Any]) -> SafeInputs:
        """The inputs with nothing in them that a tokenizer would take for a control token."""
        protection = Protection(self.texts, (messages, tools, kwargs))
        return SafeInputs(
            [safe_message(message, protection) for message in messages],
            mapped(tools, protection.swap),
            mapped(dict(kwargs), protection.swap),
            protection,
        )

    def tokenize(self, prompt: SafeText, add_special: bool = True) -> Tokens:
        """The tokens of `prompt`: control tokens only where the template put them."""
        return tokenize_prompt(self.vocab, prompt, self.texts, add_special)


def safe_message(message: Message, protection: Protection) -> Message:
    """A message made safe. An answer may keep thinking tags: it was the model that wrote them."""
    keep = THINKING_TAGS if message.get("role") == "assistant" else frozenset[str]()
    safe: Message = {}
    for key, value in message.items():
        if key in ("content", "reasoning_content"):
            safe[key] = safe_content(value, lambda text: protection.fence(text, keep))
        else:
            safe[key] = protection.role(value) if key == "role" else mapped(value, protection.swap)
    return safe


def safe_content(content: Any, change: Callable[[str], str]) -> Any:
    """A content, text or parts, with its texts changed."""
    if isinstance(content, str):
        return change(content)
    if isinstance(content, list):
        return [
            {**part, "text": change(part["text"])} if isinstance(part.get("text"), str) else part for part in content
        ]
    return content


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with every text in it changed, keys of objects included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {mapped(key, change): mapped(item, change) for key, item in value.items()}
    return value


def strings(value: Any) -> Iterator[str]:
    """Every text in `value`."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)


def one_of(words: Iterable[str]) -> str:
    """A pattern that matches the longest of `words`; a tree, since some vocabularies have thousands."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    return branch(tree)


def branch(node: dict[str, Any]) -> str:
    """The pattern of one node of that tree."""
    options = [re.escape(character) + branch(child) for character, child in node.items() if character]
    if not options:
        return ""
    joined = options[0] if len(options) == 1 and "" not in node else f"(?:{'|'.join(options)})"
    return f"{joined}?" if "" in node else joined


def tokenize_prompt(vocab: Vocab, prompt: SafeText, texts: ControlTexts, add_special: bool = True) -> Tokens:
    """The tokens of `prompt`. Elsewhere than between the marks around a fence they are those of the whole text."""
    stretches = plain_stretches(prompt, texts)
    if not stretches:
        return vocab.encode(prompt.text, add_special, True)
    pieces: list[Tokens] = [np.array([vocab.bos], np.int32)] if add_special and vocab.add_bos else []
    start = 0
    for low, high in stretches:
        pieces.append(vocab.encode(prompt.text[start:low], False, True))
        pieces.append(vocab.encode(stripped(prompt.text, low, high, texts), False, False))
        start = high
    pieces.append(vocab.encode(prompt.text[start:], False, True))
    if add_special and vocab.add_eos:
        pieces.append(np.array([vocab.eos], np.int32))
    return np.concatenate(pieces)


def plain_stretches(prompt: SafeText, texts: ControlTexts) -> list[tuple[int, int]]:
    """The ranges between real marks in which something only looks like a mark."""
    if not prompt.fences:
        return []
    stretches: list[tuple[int, int]] = []
    start, fenced = 0, False
    position = 0
    while found := texts.pattern.search(prompt.text, position):
        if touches(prompt.fences, *found.span()):
            fenced, position = True, found.start() + 1
            continue
        if fenced:
            stretches.append((start, found.start()))
        start, fenced, position = found.end(), False, found.end()
    if fenced:
        stretches.append((start, len(prompt.text)))
    return stretches


def touches(fences: tuple[tuple[int, int], ...], start: int, end: int) -> bool:
    """Whether the range meets a fence, or has an empty one inside."""
    index = bisect_left(fences, (start + 1, start + 1))
    near = fences[max(index - 1, 0) : index + 1]
    return any((low < end and high > start) if low < high else (start < low < end) for low, high in near)


def stripped(text: str, low: int, high: int, texts: ControlTexts) -> str:
    """The range without the white space that belongs to the marks around it (some vocabularies have such)."""
    stretch = text[low:high]
    if text.endswith(texts.taking_after, 0, low):
        stretch = stretch.lstrip(WHITE)
    if text.startswith(texts.taking_before, high):
        stretch = stretch.rstrip(WHITE)
    return stretch
