"""Constraints in the sampler: ends, forced tokens, triggers, compiling."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from engine.candidates import Candidates
from engine.compiler import Compiler, Compiling
from engine.grammar import Grammar, GrammarError
from engine.lazy import LazyGrammar
from engine.sampler import Sampler
from engine.vocab import Vocab
from ipc.messages import Constraint, Sampling, Trigger

DIGITS = 'root ::= "<n>" [0-9]+ "</n>"'
OBJECT = Constraint("json_schema", json.dumps({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}))


@pytest.fixture(scope="module")
def compiler(vocab: Vocab) -> Iterator[Compiler]:
    with closing(Compiler(vocab)) as made:
        yield made


@pytest.fixture(scope="module")
def candidates(vocab: Vocab) -> Candidates:
    return Candidates(vocab.n_tokens)


def written(grammar: Grammar, vocab: Vocab, text: str) -> None:
    for token in vocab.encode(text, add_special=False).tolist():
        grammar.accept(token)


def allowed(grammar: Grammar, vocab: Vocab) -> set[int]:
    return set(np.flatnonzero(np.isfinite(grammar.mask(np.zeros(vocab.n_tokens, np.float32)))).tolist())


KINDS = [
    Constraint("gbnf", 'root ::= "ab"'),
    Constraint("regex", "ab"),
    Constraint("lark", 'start: "ab"'),
    Constraint("json_schema", '{"const": 12}'),
]


@pytest.mark.parametrize("constraint", KINDS, ids=lambda constraint: constraint.kind)
def test_the_end_is_allowed_when_the_constraint_is_satisfied_and_then_nothing_else(
    constraint: Constraint, compiler: Compiler, vocab: Vocab
) -> None:
    grammar = compiler.compile(constraint)
    text = "12" if constraint.kind == "json_schema" else "ab"
    assert len(vocab.eog) > 1
    assert not allowed(grammar, vocab) & vocab.eog and not any(map(grammar.allows, vocab.eog))
    written(grammar, vocab, text)
    assert allowed(grammar, vocab) == vocab.eog and all(map(grammar.allows, vocab.eog))
    for end in vocab.eog:
        grammar.accept(end)


@pytest.mark.parametrize("constraint", KINDS, ids=lambda constraint: constraint.kind)
def test_a_token_that_does_not_fit_is_an_error(constraint: Constraint, compiler: Compiler, vocab: Vocab) -> None:
    with pytest.raises(GrammarError):
        written(compiler.compile(constraint), vocab, "zz")
    with pytest.raises(GrammarError):
        compiler.compile(constraint).accept(min(vocab.eog))


def test_forced_text_is_appended_at_once_and_then_the_end(compiler: Compiler, vocab: Vocab) -> None:
    grammar = compiler.compile(OBJECT)
    forced = grammar.forced()
    while forced[-1] not in vocab.eog:
        for token in forced[len(forced) - len(grammar.forced()) :]:
            grammar.accept(token)
        forced += grammar.forced()
    assert vocab.decode(forced[:-1]) == b'{"a": 1}' and forced[-1] == vocab.eos


def test_white_space_between_json_tokens_is_fixed(compiler: Compiler, vocab: Vocab) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    grammar = compiler.compile(Constraint("json_schema", json.dumps({**schema, "required": ["name", "age"]})))
    assert vocab.decode(grammar.forced()).startswith(b'{"name":')
    for text in ('{"name": "x"', ', "age": 1'):
        written(grammar, vocab, text)
        assert not any(grammar.allows(int(vocab.encode(blank, add_special=False)[0])) for blank in (" ", "\n", "\t"))


@pytest.mark.parametrize("kind", ["gbnf", "regex"])
def test_characters_over_several_tokens(kind: str, compiler: Compiler, vocab: Vocab) -> None:
    text = "hi 😀👨\u200d👩\u200d👧 ok"
    grammar = compiler.compile(Constraint(kind, f'root ::= "{text}"' if kind == "gbnf" else text))
    written(grammar, vocab, text)
    assert grammar.allows(next(iter(vocab.eog)))


def test_a_prefix_is_followed_first(compiler: Compiler, vocab: Vocab) -> None:
    prefix = vocab.encode("<n>4", add_special=False).tolist()
    grammar = compiler.compile(Constraint("gbnf", DIGITS, prefix=prefix))
    written(grammar, vocab, "2</n>")
    assert allowed(grammar, vocab) == vocab.eog
    with pytest.raises(GrammarError):
        compiler.compile(Constraint("gbnf", DIGITS, prefix=vocab.encode("nope", add_special=False).tolist()))


def test_sequences_with_one_grammar_do_not_disturb_each_other(compiler: Compiler, vocab: Vocab) -> None:
    one, other = (compiler.compile(OBJECT) for _ in range(2))
    written(one, vocab, '{"a": 1}')
    assert vocab.decode(other.forced()).startswith(b'{"a"')


# ------------------------------------------------ in the sampler


def test_a_draw_that_is_not_allowed_is_made_again_among_what_is(
    compiler: Compiler, vocab: Vocab, candidates: Candidates
) -> None:
    row = np.random.default_rng(1).normal(0, 1, vocab.n_tokens).astype(np.float32)
    yes, no = (int(vocab.encode(text, add_special=False)[0]) for text in ("yes", "no"))
    row[[yes, no]] = -3, -2
    grammar = compiler.compile(Constraint("gbnf", 'root ::= "yes" | "no"'))
    with closing(Sampler(vocab, Sampling(temperature=0), candidates, grammar)) as sampler:
        assert vocab.piece(sampler.sample(row)) in (b"no", b"n", b"yes", b"y", b"ye")
        row[[yes, no]] = 3, 2
        assert sampler.sample(row) == yes


def test_banning_the_end_cannot_keep_a_finished_constraint_open(
    compiler: Compiler, vocab: Vocab, candidates: Candidates
) -> None:
    grammar = compiler.compile(Constraint("gbnf", 'root ::= "a"'))
    with closing(Sampler(vocab, Sampling(seed=1, ignore_eos=True), candidates, grammar)) as sampler:
        written(grammar, vocab, "a")
        assert sampler.sample(np.zeros(vocab.n_tokens, np.float32)) in vocab.eog


def test_banning_all_that_is_allowed_is_an_error(compiler: Compiler, vocab: Vocab, candidates: Candidates) -> None:
    ban = [(token, -np.inf) for token, piece in enumerate(vocab.pieces(special=True)) if piece.startswith(b"a")]
    grammar = compiler.compile(Constraint("gbnf", 'root ::= "a"'))
    with (
        closing(Sampler(vocab, Sampling(logit_bias=ban), candidates, grammar)) as sampler,
        pytest.raises(GrammarError, match="bias"),
    ):
        sampler.sample(np.zeros(vocab.n_tokens, np.float32))


# ------------------------------------------------ triggers


def lazy(compiler: Compiler, *triggers: Trigger, text: str = DIGITS) -> LazyGrammar:
    grammar = compiler.compile(Constraint("gbnf", text, lazy=True, triggers=list(triggers)))
    assert isinstance(grammar, LazyGrammar) and grammar.lazy
    return grammar


def is_awake(grammar: Grammar, vocab: Vocab) -> bool:
    return len(allowed(grammar, vocab)) < vocab.n_tokens


def test_a_word_wakes_the_grammar_wherever_tokens_end(compiler: Compiler, vocab: Vocab) -> None:
    grammar = lazy(compiler, Trigger("word", "<n>"))
    written(grammar, vocab, "some 😀 text, < n > and then ")
    assert not is_awake(grammar, vocab)
    written(grammar, vocab, "x<n>12")
    assert is_awake(grammar, vocab)
    written(grammar, vocab, "3</n>")
    assert allowed(grammar, vocab) == vocab.eog


def test_the_text_from_the_first_group_on_is_read(compiler: Compiler, vocab: Vocab) -> None:
    grammar = lazy(compiler, Trigger("pattern", r"call: (?:now )?(<n>)"))
    written(grammar, vocab, "call: now <n>")
    assert is_awake(grammar, vocab)
    written(grammar, vocab, "7</n>")
    assert allowed(grammar, vocab) == vocab.eog


def test_a_full_pattern_matches_all_of_the_text(compiler: Compiler, vocab: Vocab) -> None:
    for text, awake in (("<n>", True), ("a <n>", False)):
        grammar = lazy(compiler, Trigger("pattern_full", "^<n>$"))
        written(grammar, vocab, text)
        assert is_awake(grammar, vocab) == awake


def test_a_token_wakes_the_grammar_and_is_read_by_it(compiler: Compiler, vocab: Vocab) -> None:
    token = int(vocab.encode("<|im_start|>")[0])
    grammar = lazy(compiler, Trigger("token", "", token), text="root ::= <|im_start|> [0-9]+")
    written(grammar, vocab, "text ")
    grammar.accept(token)
    assert is_awake(grammar, vocab)
    written(grammar, vocab, "42")


def test_a_trigger_whose_text_does_not_fit_is_passed_over(compiler: Compiler, vocab: Vocab) -> None:
    grammar = lazy(compiler, Trigger("word", "<n>"))
    written(grammar, vocab, "<n")
    grammar.accept(vocab.pieces(special=True).index(b"></"))  # completes the trigger, and says too much
    assert not is_awake(grammar, vocab)
    written(grammar, vocab, " again <n>1")
    assert is_awake(grammar, vocab)


def test_a_schema_can_sleep_too(compiler: Compiler, vocab: Vocab) -> None:
    constraint = Constraint(OBJECT.kind, OBJECT.text, lazy=True, triggers=[Trigger("pattern", r"\{")])
    grammar = compiler.compile(constraint)
    written(grammar, vocab, 'Here it is: {"a')
    assert vocab.decode(grammar.forced()).startswith(b'": 1')


def test_a_bad_or_slow_trigger_is_refused(compiler: Compiler, vocab: Vocab) -> None:
    for source in ("(a", "(" * 5000):
        with pytest.raises(GrammarError, match="trigger pattern"):
            lazy(compiler, Trigger("pattern", source))
    with pytest.raises(GrammarError, match="20000 characters"):
        lazy(compiler, Trigger("word", "a" * 20_000))
    grammar = lazy(compiler, Trigger("pattern", r"(?:(?:a|aa|aaa|a*)*)*b\1?(x+x+)+y"))
    with pytest.raises(GrammarError, match="takes too long"):
        written(grammar, vocab, "a" * 60 + "b" + "x" * 4000)


# ------------------------------------------------ compiling


def test_a_grammar_in_use_outlives_its_place_among_the_kept(compiler: Compiler, vocab: Vocab) -> None:
    grammars = [compiler.compile(Constraint(kind.kind, kind.text)) for kind in KINDS]
    sleeping = lazy(compiler, Trigger("word", "<n>"))
    for number in range(70):
        compiler.compile(Constraint("regex", f"{number}"))
    assert ("gbnf", DIGITS) not in compiler._kept and len(compiler._kept) <= 64
    for constraint, grammar in zip(KINDS, grammars, strict=True):
        written(grammar, vocab, "12" if constraint.kind == "json_schema" else "ab")
    written(sleeping, vocab, "<n>1</n>")
    assert allowed(sleeping, vocab) == vocab.eog


def test_a_slow_constraint_holds_up_nobody_and_is_refused(vocab: Vocab, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    with closing(Compiler(vocab)) as compiler:
        compiler.compile(OBJECT)
        compiler.compile(Constraint("gbnf", DIGITS))
        monkeypatch.setattr("engine.compiler._SECONDS", 0.3)
        plain = compiler._compile
        monkeypatch.setattr(
            compiler,
            "_compile",
            lambda constraint: release.wait(30) and None if "slow" in constraint.text else plain(constraint),
        )
        begin = time.monotonic()
        slow = compiler.submit(Constraint("regex", "slow"))
        compiler.compile(Constraint("regex", "quick"))
        assert isinstance(slow, Compiling) and not slow.done()
        with pytest.raises(GrammarError, match="to compile"):
            slow.result()
        assert slow.done() and time.monotonic() - begin < 10
        release.set()
