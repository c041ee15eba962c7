"""A constraint that sleeps until a trigger appears in the output (spec/generation.md §4)."""

import numpy as np
import regex

from engine.grammar import Eager, GrammarError
from engine.vocab import Vocab
from ipc.messages import Trigger

_SEARCH_SECONDS = 0.02  # for one pattern on the text so far; one that needs longer would stall every stream


class LazyGrammar:
    """Watches the text; from the first trigger on, `grammar` is in force and has read the text from there.

    libllama's own lazy grammars throw through C when a trigger's text does not fit the grammar.
    """

    lazy = True

    def __init__(self, grammar: Eager, triggers: list[Trigger], vocab: Vocab) -> None:
        self._grammar = grammar
        self._vocab = vocab
        self._tokens = {trigger.token for trigger in triggers if trigger.kind == "token"}
        self._patterns = [_compile(trigger) for trigger in triggers if trigger.kind != "token"]
        self._text = ""
        self._read: list[tuple[int, int]] = []  # tokens of the text so far, and how many bytes it has before each
        self._n_bytes = 0
        self._awake = False

    def allows(self, token: int) -> bool:
        return not self._awake or self._grammar.allows(token)

    def mask(self, logits: np.ndarray) -> np.ndarray:
        return self._grammar.mask(logits) if self._awake else logits

    def accept(self, token: int) -> None:
        if self._awake:
            self._grammar.accept(token)
        elif token in self._tokens:
            self._awake = True
            self._grammar.accept(token)
        elif self._patterns:
            self._watch(token)

    def forced(self) -> list[int]:
        return self._grammar.forced() if self._awake else []

    def close(self) -> None:
        self._grammar.close()

    def _watch(self, token: int) -> None:
        piece = self._vocab.piece(token, special=True)
        self._read.append((token, self._n_bytes))
        self._n_bytes += len(piece)
        # incomplete characters stay as surrogates, so that offsets in bytes are exact
        self._text = (_bytes(self._text) + piece).decode("utf-8", "surrogateescape")
        for pattern in self._patterns:
            start = self._find(pattern)
            if start is not None:
                self._wake(len(_bytes(self._text[:start])))
                return

    def _find(self, pattern: regex.Pattern[str]) -> int | None:
        """Where the constrained text begins: the first group that matched something, else the match."""
        try:
            match = pattern.search(self._text, timeout=_SEARCH_SECONDS)
        except TimeoutError:
            raise GrammarError(f"searching for the trigger {pattern.pattern!r:.80} takes too long") from None
        if match is None:
            return None
        groups = range(1, match.re.groups + 1)
        return match.start(next((group for group in groups if match.group(group)), 0))

    def _wake(self, start: int) -> None:
        """Read the text from byte `start` on: the rest of the token that `start` is in, then whole tokens."""
        self._awake = True
        for token, offset in self._read:
            piece = self._vocab.piece(token, special=True)
            if offset >= start:
                self._grammar.accept(token)
            elif offset + len(piece) > start:
                self._grammar.feed(piece[start - offset :])
        self._text, self._read = "", []


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _compile(trigger: Trigger) -> regex.Pattern[str]:
    source = trigger.value
    if trigger.kind == "word":
        source = regex.escape(source)
    elif trigger.kind == "pattern_full":
        source = f"^{source.removeprefix('^').removesuffix('$')}$"
    try:
        return regex.compile(source)
    except regex.error as problem:
        raise GrammarError(f"grammar trigger pattern {trigger.value!r}: {problem}") from problem
