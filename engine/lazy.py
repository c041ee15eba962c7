"""A constraint that sleeps until a trigger appears in the output (spec/generation.md §4)."""

import logging
import time
from codecs import getincrementaldecoder
from collections.abc import Callable

import numpy as np
import regex

from engine.grammar import Eager, GrammarError
from engine.vocab import Vocab
from ipc.messages import Trigger

log = logging.getLogger(__name__)

MAX_PATTERN = 10_000  # characters
_SEARCH_SECONDS = 0.02  # for all patterns on the text so far; what needs longer would stall every stream

Patterns = list[regex.Pattern[str]]


class LazyGrammar:
    """Watches the text; from the first trigger that fits on, `make()`'s grammar is in force and has read the text."""

    lazy = True

    def __init__(self, make: Callable[[], Eager], triggers: list[Trigger], patterns: Patterns, vocab: Vocab) -> None:
        """`patterns` are those of `compile_patterns`."""
        self._make = make
        self._grammar: Eager | None = None
        self._vocab = vocab
        self._tokens = {trigger.token for trigger in triggers if trigger.kind == "token"}
        self._patterns = patterns
        self._decoder = getincrementaldecoder("utf-8")("surrogateescape")  # keeps offsets in bytes exact
        self._text = ""
        self._passed = 0  # characters in which no trigger is looked for any more
        self._read: list[tuple[int, int]] = []  # tokens of the text so far, and how many bytes it has before each
        self._n_bytes = 0

    def allows(self, token: int) -> bool:
        return self._grammar is None or self._grammar.allows(token)

    def mask(self, logits: np.ndarray) -> np.ndarray:
        return logits if self._grammar is None else self._grammar.mask(logits)

    def accept(self, token: int) -> None:
        if self._grammar is not None:
            self._grammar.accept(token)
        elif token in self._tokens:
            self._wake([(token, 0)], 0)
        elif self._patterns:
            self._watch(token)

    def forced(self) -> list[int]:
        return [] if self._grammar is None else self._grammar.forced()

    def close(self) -> None:
        if self._grammar is not None:
            self._grammar.close()

    def _watch(self, token: int) -> None:
        piece = self._vocab.piece(token, special=True)
        self._read.append((token, self._n_bytes))
        self._n_bytes += len(piece)
        self._text += self._decoder.decode(piece)
        deadline = time.monotonic() + _SEARCH_SECONDS
        found = [self._find(pattern, deadline) for pattern in self._patterns]
        start = min((at for at in found if at is not None), default=None)
        if start is None:
            return
        if self._wake(self._read, len(self._text[:start].encode("utf-8", "surrogateescape"))):
            self._text, self._read = "", []
        else:
            self._passed = start + 1

    def _find(self, pattern: regex.Pattern[str], deadline: float) -> int | None:
        """Where the constrained text begins: the first group that matched something, else the match."""
        try:
            match = pattern.search(self._text, self._passed, timeout=max(1e-6, deadline - time.monotonic()))
        except TimeoutError:
            raise GrammarError(f"searching for the trigger {pattern.pattern!r:.80} takes too long") from None
        if match is None:
            return None
        groups = range(1, match.re.groups + 1)
        return match.start(next((group for group in groups if match.group(group)), 0))

    def _wake(self, read: list[tuple[int, int]], start: int) -> bool:
        """Read the text from byte `start` on: the rest of the token that `start` is in, then whole tokens.

        Text that the constraint cannot follow was no beginning of what it describes: the sleep goes on.
        """
        grammar = self._make()
        try:
            for token, offset in read:
                piece = self._vocab.piece(token, special=True)
                if offset >= start:
                    grammar.accept(token)
                elif offset + len(piece) > start:
                    grammar.feed(piece[start - offset :])
        except GrammarError as problem:
            log.info("a trigger is passed over, the text after it does not fit: %s", problem)
            grammar.close()
            return False
        self._grammar = grammar
        return True


def compile_patterns(triggers: list[Trigger]) -> Patterns:
    """What to look for in the text. Takes a while for long ones. Raises GrammarError."""
    return [_compile(trigger) for trigger in triggers if trigger.kind != "token"]


def _compile(trigger: Trigger) -> regex.Pattern[str]:
    source = trigger.value
    if len(source) > MAX_PATTERN:
        raise GrammarError(f"a grammar trigger has {len(source)} characters, more than {MAX_PATTERN}")
    if trigger.kind == "word":
        source = regex.escape(source)
    elif trigger.kind == "pattern_full":
        source = rf"^(?:{source.removeprefix('^').removesuffix('$')})\Z"
    try:
        return regex.compile(source)
    except (regex.error, RecursionError) as problem:
        raise GrammarError(f"grammar trigger pattern {trigger.value!r:.80}: {problem}") from problem
