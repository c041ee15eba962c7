"""The state machine that bounds a thinking block, fed with made-up tokens."""

from typing import Any

import pytest

from engine.reasoning import Reasoning
from ipc.messages import ReasoningBudget
from tests.tiny_vocab import TinyVocab

VOCAB = TinyVocab()
START, END, SO = b"<t>", b"</t>", b"so "


def reasoning(tokens: int | None = None, **more: Any) -> Reasoning:
    """The machine for marks <t> and </t>, which forces "so </t>"."""
    budget = ReasoningBudget(list(START), [list(END), list(b"<call>")], list(SO + END), tokens, **more)
    return Reasoning(budget, VOCAB)  # type: ignore[arg-type]


def feed(machine: Reasoning, text: bytes) -> list[int]:
    """What the last token of `text` gives."""
    last: list[int] = []
    for token in text:
        assert machine.forced() is None
        last = machine.accept(token)
    return last


def follow(machine: Reasoning) -> bytes:
    """The tokens that are forced from here on."""
    taken = b""
    while (token := machine.forced()) is not None:
        taken += bytes([token])
        machine.accept(token)
    return taken


def test_thinking_lasts_from_the_start_tag_to_an_end_tag() -> None:
    machine = reasoning()
    feed(machine, b"well <t")
    assert not machine.thinking
    feed(machine, b">hm")
    assert machine.thinking
    assert feed(machine, b"</t>") == list(END), "a lazy constraint reads the end tag"
    assert not machine.thinking


def test_any_end_tag_ends_it() -> None:
    machine = reasoning()
    assert feed(machine, b"<t>hm<call>") == list(b"<call>")
    assert not machine.thinking


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_the_end_is_forced_when_the_budget_is_used_up(budget: int) -> None:
    machine = reasoning(budget)
    feed(machine, START + b"x" * budget)
    assert follow(machine) == SO + END
    assert not machine.thinking
    assert feed(machine, b"free now") == []


def test_an_end_within_the_budget_is_natural() -> None:
    machine = reasoning(5)
    feed(machine, b"<t>x</t>and a long answer")
    assert machine.forced() is None


def test_every_block_has_the_whole_budget() -> None:
    machine = reasoning(6)
    feed(machine, b"<t>x</t>text<t>xxxxxx")
    assert follow(machine) == SO + END


def test_thinking_that_begins_in_the_prompt() -> None:
    machine = reasoning(2, prefix=list(START))
    assert machine.thinking
    feed(machine, b"xx")
    assert follow(machine) == SO + END


def test_an_answer_that_begins_with_thinking_without_a_mark() -> None:
    budget = ReasoningBudget([], [list(END)], list(END), 3)
    machine = Reasoning(budget, VOCAB)  # type: ignore[arg-type]
    assert machine.thinking
    feed(machine, b"xxx")
    assert follow(machine) == END
    feed(machine, b"the answer")
    assert not machine.thinking


def test_the_end_waits_for_the_end_of_a_character() -> None:
    machine = reasoning(1)
    feed(machine, START)
    first, second = "é".encode()
    machine.accept(first)
    assert machine.forced() is None
    machine.accept(second)
    assert follow(machine) == SO + END


def test_thinking_is_ended_from_outside_only_while_it_goes_on() -> None:
    machine = reasoning(control=True)
    assert machine.controllable
    assert not machine.end()
    feed(machine, b"<t>hm")
    assert machine.end()
    assert follow(machine) == SO + END
    assert not machine.end()
