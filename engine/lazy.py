"""A constraint that sleeps until a trigger appears in the output (spec/generation.md §4)."""

from collections.abc import Callable

import numpy as np
import regex

from engine.grammar import Grammar, GrammarError
from engine.vocab import Vocab
from ipc.messages import Trigger

_SEARCH_SECONDS = 0.05  # a pattern that needs longer than this on one token is given up


class LazyGrammar:
    """Watches the text; from the first trigger on, `make()`'s grammar is in force.

    libllama's own lazy grammars throw through C when a trigger's text does not fit the grammar, so the waiting is
    done here, and the matched text is fed token by token with a check.
    """

    lazy = True

    def __init__(self, make: Callable[[], Grammar], triggers: list[Trigger], vocab: Vocab) -> None:
        self._make = make
        self._vocab = vocab
        self._tokens = {trigger.token for trigger in triggers if trigger.kind == "token"}
        self._patterns = [_compile(trigger) for trigger in triggers if trigger.kind != "token"]
        self._text = b""
        self._grammar: Grammar | None = None

    def allows(self, token: int) -> bool:
        return self._grammar is None or self._grammar.allows(token)

    def mask(self, logits: np.ndarray) -> np.ndarray:
        return logits if self._grammar is None else self._grammar.mask(logits)

    def accept(self, token: int) -> None:
        if self._grammar is not None:
            self._grammar.accept(token)
        elif token in self._tokens:
            self._wake([token])
        else:
            self._text += self._vocab.piece(token, special=True)
            self._search()

    def forced(self) -> list[int]:
        return [] if self._grammar is None else self._grammar.forced()

    def close(self) -> None:
        if self._grammar is not None:
            self._grammar.close()

    def _search(self) -> None:
        text = self._text.decode("utf-8", "ignore")
        for pattern in self._patterns:
            try:
                match = pattern.search(text, timeout=_SEARCH_SECONDS)
            except TimeoutError:
                continue
            if match:
                group = next((i for i in range(1, (match.re.groups or 0) + 1) if match.group(i)), 0)
                self._wake(self._vocab.encode(text[match.start(group) :], add_special=False).tolist())
                return

    def _wake(self, tokens: list[int]) -> None:
        grammar = self._make()
        try:
            for token in tokens:
                grammar.accept(token)
        except GrammarError:
            grammar.close()
            raise
        self._grammar = grammar
        self._text = b""


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
