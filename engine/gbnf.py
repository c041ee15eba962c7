"""Checks a GBNF grammar before libllama's parser sees it: a hostile one must neither crash nor stall the engine."""

from engine.grammar import GrammarError

MAX_DEPTH = 100


def check_gbnf(text: str) -> None:
    """Raises GrammarError with line and column."""
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth > MAX_DEPTH:
            line = text.count("\n", 0, at) + 1
            raise GrammarError(f"line {line}: brackets are nested more than {MAX_DEPTH} deep")
