"""The marks that a chat template puts around the model's thinking."""

import re
from typing import Any

from msgspec import Struct

from api.capabilities import TEXT, THOUGHT, Renders, Trial, both_calls, content_kinds, old_thought

OPENING = re.compile(r"(?:<[^<>\n]*>|\[[^\[\]\n]*\])[a-z]*\s*$")  # the last mark, and a word that belongs to it
CLOSING = re.compile(r"\s*(?:<[^<>\n]*>|\[[^\[\]\n]*\])\s*")


class ThinkingTags(Struct, frozen=True):
    """What stands before and after a thought, white space included."""

    start: str
    end: str


DEFAULT_TAGS = ThinkingTags("<think>\n", "\n</think>\n\n")


def find_thinking_tags(template: Renders) -> ThinkingTags | None:
    """The marks around a thought that is part of a made-up conversation; None if the template shows none."""
    trial = Trial(template, typed=not content_kinds(template)[0])
    for turns in thoughtful_turns(trial):
        before, found, after = (trial.render(turns, add_generation_prompt=False) or "").partition(THOUGHT)
        opening, closing = OPENING.search(before), CLOSING.match(after)
        if found and opening and closing:
            return ThinkingTags(opening[0], closing[0])
    return None


def thoughtful_turns(trial: Trial) -> list[list[dict[str, Any]]]:
    """Conversations with a thought: in the last answer, in a call, in an old answer."""
    thought = {"reasoning_content": THOUGHT}
    question, answer = trial.turn("user", TEXT), trial.turn("assistant", TEXT, **thought)
    called = [[asked, call | thought, result] for asked, call, result, *_ in both_calls(trial)]
    return [[question, answer], *called, old_thought(trial)]
