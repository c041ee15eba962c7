"""Long chains of rules and references are followed, or refused, without the end of the process."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from api.parse.checks import fault
from api.tools import grammar_fault
from engine.compiler import Compiler
from engine.deep import deeply
from engine.grammar import GrammarError
from engine.vocab import Vocab
from ipc.messages import Constraint


def chain_of_rules(n: int) -> str:
    return "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(n)) + f'r{n}: "a"\n'


def chain_of_references(n: int) -> dict[str, Any]:
    links = {f"a{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(n)}
    return {"$defs": {**links, f"a{n}": {"type": "null"}}, "$ref": "#/$defs/a0"}


@pytest.fixture(scope="module")
def compiler(vocab: Vocab) -> Iterator[Compiler]:
    with closing(Compiler(vocab)) as made:
        yield made


def test_the_engine_follows_a_long_chain_of_rules(compiler: Compiler, vocab: Vocab) -> None:
    with closing(compiler.compile(Constraint("lark", chain_of_rules(9000)))) as grammar:
        assert grammar.forced()[:1] == vocab.encode("a").tolist()


def test_the_engine_follows_a_long_chain_of_references(compiler: Compiler, vocab: Vocab) -> None:
    schema = json.dumps(chain_of_references(2000))
    with closing(compiler.compile(Constraint("json_schema", schema))) as grammar:
        assert grammar.allows(int(vocab.encode("{")[0]))


@pytest.mark.parametrize("text", [chain_of_rules(15_000), 'start: "a"\n' + "\n" * 20_000, "start: " + "a " * 200_000])
def test_a_longer_grammar_is_refused(compiler: Compiler, text: str) -> None:
    with pytest.raises(GrammarError, match="the grammar has"):
        compiler.compile(Constraint("lark", text))


def test_a_worker_checks_a_long_chain_of_references() -> None:
    schema = chain_of_references(2000)
    assert fault(schema) == grammar_fault("start: %json " + json.dumps(schema)) == ""


def test_a_deep_call_raises_what_was_raised() -> None:
    with pytest.raises(ValueError, match="no"):
        deeply(int, "no")
