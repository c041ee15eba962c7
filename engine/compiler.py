"""Compiles constraints off the decode loop and keeps the compiled ones."""

import ctypes
import json
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import llguidance

from engine import llama
from engine.candidates import Candidates
from engine.gbnf import check_gbnf
from engine.grammar import GbnfGrammar, Grammar, GrammarError, LlgGrammar
from engine.lazy import LazyGrammar
from engine.vocab import Vocab
from ipc.messages import Constraint

_KEPT = 64  # compiled constraints
_CONTROL, _USER_DEFINED = 1 << 3, 1 << 4


class Compiler:
    """Turns `Constraint`s into `Grammar`s on one thread; `submit` never blocks the caller."""

    def __init__(self, vocab: Vocab, candidates: Candidates) -> None:
        self._vocab = vocab
        self._candidates = candidates
        self._pool = ThreadPoolExecutor(1, "compile")
        self._compiled: OrderedDict[tuple[str, str], GbnfGrammar | LlgGrammar] = OrderedDict()
        self._tokenizer: Future[llguidance.LLTokenizer] = self._pool.submit(_tokenizer, vocab)

    def submit(self, constraint: Constraint) -> "Future[Grammar]":
        """A future grammar; its exception is a GrammarError for bad input."""
        return self._pool.submit(self.compile, constraint)

    def compile(self, constraint: Constraint) -> Grammar:
        original = self._original(constraint)
        if constraint.lazy:
            return LazyGrammar(original.clone, constraint.triggers, self._vocab)
        grammar = original.clone()
        for token in constraint.prefix:
            grammar.accept(token)
        return grammar

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for grammar in self._compiled.values():
            grammar.close()

    def _original(self, constraint: Constraint) -> GbnfGrammar | LlgGrammar:
        key = (constraint.kind, constraint.text)
        if key in self._compiled:
            self._compiled.move_to_end(key)
            return self._compiled[key]
        grammar = self._gbnf(constraint.text) if constraint.kind == "gbnf" else self._llg(constraint)
        self._compiled[key] = grammar
        if len(self._compiled) > _KEPT:
            self._compiled.popitem(last=False)[1].close()
        return grammar

    def _gbnf(self, text: str) -> GbnfGrammar:
        check_gbnf(text)
        sampler = llama.llama_sampler_init_grammar(self._vocab.ptr, text.encode(), b"root")
        if not sampler:
            raise GrammarError("failed to parse grammar")
        return GbnfGrammar(sampler, self._candidates)

    def _llg(self, constraint: Constraint) -> LlgGrammar:
        source = _source(constraint)
        matcher = llguidance.LLMatcher(self._tokenizer.result(), source, log_level=0)
        if matcher.is_error():
            raise GrammarError(matcher.get_error())
        return LlgGrammar(matcher, self._vocab)


def _source(constraint: Constraint) -> str:
    if constraint.kind == "json_schema":
        return llguidance.LLMatcher.grammar_from_json_schema(json.loads(constraint.text))
    if constraint.kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(constraint.text)
    if constraint.kind == "lark":
        return llguidance.LLMatcher.grammar_from_lark(constraint.text)
    raise GrammarError(f"unknown kind of constraint: {constraint.kind!r}")


def _tokenizer(vocab: Vocab) -> llguidance.LLTokenizer:
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
        tokens=pieces, vocab_ptr=vocab.ptr.value, tokenize_fptr=tokenize, eos_token=sorted(vocab.eog), slices=None
    )
    return tokenizer
