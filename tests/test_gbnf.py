"""GBNF: what is refused and where, and that what is followed is what libllama's grammar sampler follows."""

import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from engine import llama
from engine.candidates import Candidates
from engine.gbnf import parse_gbnf
from engine.gbnf_grammar import CompiledGbnf, GbnfGrammar
from engine.gbnf_rules import Gbnf
from engine.grammar import GrammarError
from engine.pieces import Pieces, split
from engine.vocab import Vocab


def parsed(text: str) -> Gbnf:
    return parse_gbnf(text, {"<a>": 7}.get, 100)


def lines(*rules: str) -> str:
    return "\n".join(rules)


REFUSED = [
    ("", "line 1, column 1: there is no rule 'root'"),
    ('Root ::= "a"', "line 1, column 1: there is no rule 'root'"),
    ('rout::=\\"x', "line 1, column 8: unexpected"),
    ("answer ::= 'yes'", 'line 1, column 12: unexpected "\'"; literals stand in double quotes'),
    ('root ::= "a', "line 1, column 10: the literal is not closed"),
    ("root ::= [a-z", "line 1, column 10: the character class is not closed"),
    ("root ::= []", "line 1, column 10: the character class is empty"),
    ("root ::= [z-a]", "line 1, column 11: the range's end is below its start"),
    ('root ::= "\\q"', "line 1, column 11: unknown escape '\\\\q'"),
    ('root ::= "\\x4"', "line 1, column 11: '\\\\x' needs 2 hexadecimal digits"),
    ('root ::= "\\U00110000"', "line 1, column 11: .* is beyond Unicode"),
    ('root = "a"', "line 1, column 6: unexpected '='"),
    ('root "a"', "line 1, column 6: expected '::=', found '\"a\"'"),
    ('root ::= ("a"', "line 1, column 14: expected '\\)', found the end"),
    ('root ::= "a")', "line 1, column 13: expected the end of the line, found '\\)'"),
    (lines('root ::= "a"', '  | "b"'), "line 2, column 3: expected a rule name, found '|'; .* within parentheses"),
    ("root ::= *", "line 1, column 10: '\\*' has nothing before it to repeat"),
    ('root ::= "a"{}', "line 1, column 13: expected {m}"),
    ('root ::= "a"{x}', "line 1, column 13: expected {m}"),
    ('root ::= "a"{3,2}', "line 1, column 13: at least 3 but at most 2 repetitions"),
    ('root ::= "a"{2001}', "line 1, column 13: more than 2000 repetitions"),
    (lines('root ::= "a"', "", "b ::= foo"), "line 3, column 7: rule 'foo' is used but not defined"),
    ('root ::= root "a" | "b"', "line 1, column 1: rule 'root' is left-recursive"),
    (lines("root ::= a", 'a ::= b "x"', "b ::= a"), "line 2, column 1: rule 'a' is left-recursive"),
    (lines("root ::= a", 'a ::= n a "y" | "x"', "n ::= m", 'm ::= ""'), "line 2, column 1: rule 'a' is left-recursive"),
    ("root ::= <b>", "line 1, column 10: '<b>' is not one token of this model"),
    ("root ::= !<[100]>", "line 1, column 10: token 100 is outside the vocabulary of 100"),
]


@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_a_bad_grammar_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(GrammarError, match=f"^{problem}"):
        parsed(text)


HOSTILE = {
    "60,000 brackets": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000,
    "5,000 chained rules": lines("root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(5000)), 'r5000 ::= "a"'),
    "repetitions in repetitions": 'root ::= ("a"{1000}){1000}',
    "repetitions in four": 'root ::= (((("a"{20}){20}){20}){20})',
    "long literals repeated": f'root ::= "{"a" * 200}"{{0,2000}}',
    "many rules": lines('root ::= "a"', *(f'r{i} ::= "x"*' for i in range(20_000))),
    "large text": 'root ::= "' + "a" * 600_000 + '"',
    "unclosed literal": 'root ::= "' + "\\\\" * 200_000,
    "unclosed class": "root ::= [" + "a-" * 200_000,
    "nullable repeated": 'root ::= ("a"?){0,2000} "b"',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_in_time(name: str) -> None:
    begin = time.process_time()
    with pytest.raises(GrammarError):
        parsed(HOSTILE[name])
    assert time.process_time() - begin < 1


ACCEPTED = [
    'root ::= "a" # comment\n\n# more\n',
    "root ::= (\n  # inside\n  [a-z]\n  | [0-9]\n)\r\n",
    'root ::= "a" |\n  "b"',
    'root::="a"',
    'root ::=\n  x\nx ::= [^"\\\\\\]-] | [-a] | [a-] | [\\x41-\\u00e9\\U0001F600]',
    'root ::= "a"{2} "b"{1,} "c"{,3} "d"{ 0 , 4 } "e"{0,5000}',
    'root ::= "" | ("a"*)* | ("b" | "")+ | ("c"?)*',
    "root ::= . <a> !<a> <[3]> !<[4]>",
    'root ::= "first"\nroot ::= "last wins"',
    'root ::= rule-2 3\nrule-2 ::= "x"\n3 ::= "y"',
    "root ::= " + "(" * 150 + '"a"' + ")" * 150,
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_the_whole_notation_is_read(text: str) -> None:
    parsed(text)


# ------------------------------------------------ the same language as libllama's


class Reference:
    """libllama's grammar sampler."""

    def __init__(self, vocab: Vocab, text: str) -> None:
        self._sampler = llama.llama_sampler_init_grammar(vocab.ptr, text.encode(), b"root")
        assert self._sampler
        self._candidates = Candidates(vocab.n_tokens)
        self._logits = np.zeros(vocab.n_tokens, np.float32)

    def mask(self) -> np.ndarray:
        self._candidates.fill(self._logits)
        self._candidates.apply(self._sampler)
        view = self._candidates.view()
        mask = np.zeros(len(self._logits), bool)
        mask[view["id"]] = np.isfinite(view["logit"])
        return mask

    def accept(self, token: int) -> None:
        llama.llama_sampler_accept(self._sampler, token)

    def close(self) -> None:
        llama.llama_sampler_free(self._sampler)


GRAMMARS = {
    "json": r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (member ("," ws member)*)? "}" ws
member ::= string ":" ws value
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws     ::= [ \t\n]{0,3}
""",
    "sums": lines("root ::= sum", "sum ::= term ([-+*/] term)*", 'term ::= [0-9]+ | "(" sum ")"'),
    "bullets": lines('root ::= ("- " item)+', 'item ::= [^\\n]+ "\\n"'),
    "words": 'root ::= ("yes" | "yesterday" | "no" | "nothing at all") [.!?]{1,2}',
    "any": 'root ::= "<" .* ">"',
    "repetitions": 'root ::= ("ab"{2,3} | "abab" "c"?){1,2} [ ]{0,4} "end"?',
    "nullable loops": 'root ::= ("x"*)* ("y"?)* "z"',
    "cjk and emoji": 'root ::= [ぁ-ゟ]{1,3} "、"? [\\U0001F600-\\U0001F64F]+ "é"',
    "tokens": "root ::= <|im_start|> !<|im_start|>{1,3} <|im_start|> [a-z]+",
    "markup": lines('root ::= "<a>" inner* "</a>"', 'inner ::= "<b>" inner* "</b>" | [a-z ]'),
    "empty": 'root ::= "" | "a"',
}


@pytest.fixture(scope="module")
def pieces(vocab: Vocab) -> Pieces:
    return Pieces(vocab)


def grammar_of(text: str, vocab: Vocab, pieces: Pieces) -> GbnfGrammar:
    def token_of(name: str) -> int | None:
        tokens = vocab.encode(name, add_special=False)
        return int(tokens[0]) if len(tokens) == 1 else None

    return GbnfGrammar(CompiledGbnf(parse_gbnf(text, token_of, vocab.n_tokens), pieces), vocab)


def walk(vocab: Vocab, grammar: GbnfGrammar, seed: int) -> Iterator[tuple[np.ndarray, int]]:
    """A random output: each step's mask and the token taken, short ones more often."""
    rng = np.random.default_rng(seed)
    lengths = np.array([len(piece) for piece in vocab.pieces(special=True)])
    for _ in range(25):
        mask = np.isfinite(grammar.mask(np.zeros(vocab.n_tokens, np.float32)))
        allowed = np.flatnonzero(mask & ~np.isin(np.arange(vocab.n_tokens), list(vocab.eog)))
        if not len(allowed):
            return
        weights = 1 / (1 + lengths[allowed]) ** 2
        token = int(rng.choice(allowed, p=weights / weights.sum()))
        yield mask, token
        grammar.accept(token)


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("seed", range(3))
def test_masks_are_those_of_libllama(name: str, seed: int, vocab: Vocab, pieces: Pieces) -> None:
    grammar = grammar_of(GRAMMARS[name], vocab, pieces)
    output = b""
    with closing(Reference(vocab, GRAMMARS[name])) as reference:
        for ours, token in walk(vocab, grammar, seed):
            differing = np.flatnonzero(ours != reference.mask()).tolist()
            assert [t for t in differing if not is_excused(output, vocab.piece(t, special=True), name)] == []
            assert all(
                grammar.allows(int(t)) == ours[t] for t in np.random.default_rng(seed).integers(0, len(ours), 50)
            )
            if name == "tokens" and differing:
                return  # the rest of a character that libllama refuses
            output += vocab.piece(token, special=True)
            reference.accept(token)


def is_excused(output: bytes, piece: bytes, name: str) -> bool:
    """libllama takes overlong UTF-8, and no incomplete character under `!<token>`."""
    return split(output + piece)[1] is None or (name == "tokens" and split(piece)[0] == "")


@pytest.mark.parametrize(
    "text", ["t", "alpha beta gamma delta", "hi 😀👨\u200d👩\u200d👧 ok", 'quotes " and \\ and\nlines', "日本語 ελ"]
)
def test_a_literal_is_spelled_exactly_and_then_ends(text: str, vocab: Vocab, pieces: Pieces) -> None:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    grammar = grammar_of(f'root ::= "{escaped}"', vocab, pieces)
    tokens = [token for _, token in walk(vocab, grammar, 1)]
    rest = text.encode()[len(vocab.decode(tokens)) :]
    grammar.feed(rest)
    assert vocab.decode(tokens) + rest == text.encode()
    mask = np.isfinite(grammar.mask(np.zeros(vocab.n_tokens, np.float32)))
    assert set(np.flatnonzero(mask).tolist()) == set(vocab.eog)


# ------------------------------------------------ bounded work where libllama's grows without bound


EXPLOSIVE = {
    "nested sums": lines("root ::= sum", 'sum ::= term "+" sum | term', 'term ::= "(" sum ")" | [0-9]+'),
    "two endings": 'root ::= "(" root "b" | "(" root "c" | "x"',
    "three ways": lines("root ::= s", 's ::= "(" s s | "(" s | "("'),
    "loops in loops": 'root ::= ((("("|"(")*)*"b"?)*',
    "alternatives": lines("root ::= r0", *(f"r{i} ::= r{i + 1} | r{i + 1}" for i in range(40)), 'r40 ::= "("+'),
}


@pytest.mark.parametrize("name", EXPLOSIVE)
def test_an_ambiguous_grammar_costs_bounded_time(name: str, vocab: Vocab, pieces: Pieces) -> None:
    grammar = grammar_of(EXPLOSIVE[name], vocab, pieces)
    token = int(vocab.encode("(", add_special=False)[0])
    slowest = 0.0
    for _ in range(60):
        begin = time.process_time()
        assert grammar.allows(token)
        grammar.accept(token)
        grammar.mask(np.zeros(vocab.n_tokens, np.float32))
        slowest = max(slowest, time.process_time() - begin)
    assert slowest < 0.5


def test_too_ambiguous_a_grammar_is_refused(vocab: Vocab, pieces: Pieces) -> None:
    with pytest.raises(GrammarError, match="too ambiguous"):
        grammar_of("root ::= " + ' "-"?' * 3000 + ' "b"', vocab, pieces)


def test_states_are_made_anew_when_they_are_many(vocab: Vocab, pieces: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = CompiledGbnf(parse_gbnf(GRAMMARS["json"], {}.get, vocab.n_tokens), pieces)
    monkeypatch.setattr("engine.gbnf_machine._MAX_STATES", 20)
    one, other = GbnfGrammar(compiled, vocab), GbnfGrammar(compiled, vocab)
    first = compiled.masks
    other.feed(b'{"a')
    for text in ('{"a": [1, [2, {"b": "c', '"}], 3]', "}"):
        one.feed(text.encode())
    assert compiled.masks is not first
    assert one.allows(next(iter(vocab.eog)))
    with pytest.raises(GrammarError):
        one.feed(b"}")
    other.feed(b'": 1}')
    assert other.allows(next(iter(vocab.eog)))
