"""Compiles constraints off the decode loop and keeps the compiled ones."""

import ctypes
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, cast

import llguidance

from engine import llama
from engine.deep import DeepPool
from engine.gbnf import parse_gbnf
from engine.gbnf_grammar import CompiledGbnf, GbnfGrammar
from engine.grammar import Eager, Grammar, GrammarError
from engine.lazy import LazyGrammar, Patterns, compile_patterns
from engine.llg_grammar import LlgGrammar, main_end
from engine.llg_source import llg_source
from engine.pieces import Pieces
from engine.vocab import Vocab
from ipc.messages import Constraint

_KEPT = 64  # compiled constraints
_THREADS = 3  # so that a slow constraint does not hold up the others
_SECONDS = 10.0  # until a constraint that still compiles is refused
_CLOSE_SECONDS = 5.0
_SETUP_SECONDS = 60.0  # more, while the vocabulary is still being read
_N_STATES = 50_000  # of a lexer: about 100 MB, and half a second when all are made at once
_LIMITS = llguidance.LLParserLimits(  # an ambiguous grammar fails within tens of milliseconds
    max_items_in_row=1500, step_max_items=30_000, max_lexer_states=_N_STATES, verbose_errors=False
)
_JSON_LIMITS = llguidance.LLParserLimits(  # each optional property of an object takes four items
    max_items_in_row=5000, step_max_items=50_000, max_lexer_states=_N_STATES, verbose_errors=False
)
_CONTROL, _USER_DEFINED = 1 << 3, 1 << 4

_PREFIX = "Failed to initialize samplers: "
_PREFIXES = {
    "gbnf": _PREFIX + "failed to parse grammar: ",
    "json_schema": '"json_schema": JSON schema conversion failed:\n',
}

Compiled = Callable[[], Eager]  # makes a grammar at its beginning


@dataclass(frozen=True, slots=True)
class Compiling:
    """A constraint that is being compiled, or was. The grammar is made by `result`, on the caller's thread."""

    _compiled: "Future[Compiled]"
    _patterns: "Future[Patterns] | None"  # of a constraint that sleeps
    _constraint: Constraint
    _vocab: Vocab
    _deadline: float

    def done(self) -> bool:
        """Whether `result` answers at once."""
        can_wake = self._patterns is None or self._patterns.done()
        return (self._compiled.done() and can_wake) or time.monotonic() > self._deadline

    def result(self) -> Grammar:
        """The grammar at its beginning. Raises GrammarError for a bad constraint, or one that takes too long."""
        try:
            make = self._compiled.result(self._left)
            patterns = self._patterns.result(self._left) if self._patterns is not None else None
        except TimeoutError:
            raise GrammarError(f"the constraint takes more than {_SECONDS:.0f} s to compile") from None
        if patterns is not None:
            return LazyGrammar(make, self._constraint.triggers, patterns, self._vocab)
        grammar = make()
        for token in self._constraint.prefix:
            grammar.accept(token)
        return grammar

    @property
    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())


class Compiler:
    """Turns `Constraint`s into `Grammar`s on threads of its own; belongs to the decode loop's thread."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._pool = DeepPool(_THREADS, "compile")
        self._kept: OrderedDict[tuple[str, str], Future[Compiled]] = OrderedDict()
        self._tokenizer: Future[llguidance.LLTokenizer] = self._pool.submit(make_tokenizer, vocab)
        self._pieces: Future[Pieces] = self._pool.submit(Pieces, vocab)

    def submit(self, constraint: Constraint) -> Compiling:
        """Start compiling, if `constraint` is not known already; never blocks."""
        key = (constraint.kind, constraint.text)
        if key in self._kept:
            self._kept.move_to_end(key)
        else:
            self._kept[key] = self._pool.submit(self._compile, constraint)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        is_set_up = self._tokenizer.done() and self._pieces.done()
        deadline = time.monotonic() + _SECONDS + (0 if is_set_up else _SETUP_SECONDS)
        patterns = self._pool.submit(compile_patterns, constraint.triggers) if constraint.lazy else None
        return Compiling(self._kept[key], patterns, constraint, self._vocab, deadline)

    def compile(self, constraint: Constraint) -> Grammar:
        """The grammar, once it is compiled."""
        return self.submit(constraint).result()

    def close(self) -> None:
        """End the threads; those that still read the vocabulary first, for it may be freed afterwards."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        setup: list[Future[Any]] = [self._tokenizer, self._pieces]
        wait(setup, _CLOSE_SECONDS)

    def _compile(self, constraint: Constraint) -> Compiled:
        try:
            return self._gbnf(constraint.text) if constraint.kind == "gbnf" else self._llg(constraint)
        except GrammarError as problem:
            text = _PREFIXES.get(constraint.kind, _PREFIX) + str(problem)
        raise GrammarError(text)  # alone: the failure is kept, and must not keep what led to it

    def _gbnf(self, text: str) -> Compiled:
        gbnf = parse_gbnf(text, self._token_of, self._vocab.n_tokens)
        compiled = CompiledGbnf(gbnf, self._pieces.result())
        return lambda: GbnfGrammar(compiled, self._vocab)

    def _token_of(self, text: str) -> int | None:
        tokens = self._vocab.encode(text, add_special=False)
        return int(tokens[0]) if len(tokens) == 1 else None

    def _llg(self, constraint: Constraint) -> Compiled:
        tokenizer = self._tokenizer.result()
        limits = _JSON_LIMITS if constraint.kind == "json_schema" else _LIMITS
        source = llg_source(constraint, lambda source: _errors(tokenizer, source, limits))
        matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=limits)
        return LlgGrammar(matcher, tokenizer, self._vocab).clone


def _errors(tokenizer: llguidance.LLTokenizer, source: str, limits: llguidance.LLParserLimits) -> str:
    """What is wrong with a source, also when that shows only with its first mask."""
    matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=limits)
    if not matcher.is_error() and not matcher.is_stopped():
        matcher.compute_ff_tokens()
        matcher.compute_bitmask()
    return matcher.get_error() if matcher.is_error() else ""


def make_tokenizer(vocab: Vocab) -> llguidance.LLTokenizer:
    """llguidance's view of the vocabulary; control tokens are marked by a leading 0xFF. Takes about a second."""
    pieces = list(vocab.pieces(special=True))
    for token, piece in enumerate(pieces):
        attr = llama.llama_vocab_get_attr(vocab.ptr, token)
        looks_special = piece.startswith(b"<") and piece.endswith(b">")
        if attr & _CONTROL or (attr & _USER_DEFINED and looks_special):
            pieces[token] = b"\xff" + piece
    tokenize = ctypes.cast(cast(Any, llama.llama_tokenize), ctypes.c_void_p).value
    make: Any = cast(Any, llguidance.LLTokenizer).from_llamacpp  # missing in the package's stubs
    tokenizer: llguidance.LLTokenizer = make(
        tokens=pieces, vocab_ptr=vocab.ptr.value, tokenize_fptr=tokenize, eos_token=main_end(vocab), slices=None
    )
    return tokenizer
