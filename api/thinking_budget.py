"""How the engine follows and bounds an answer's thinking: `spec/generation.md` §10."""

from collections.abc import Callable

from api import params
from api.parse.layout import Thinking
from ipc.messages import ReasoningBudget

Encode = Callable[[str], list[int]]


def reasoning_budget(
    asked: params.Thinking, marks: Thinking | None, opened: bool, lazy: bool, encode: Encode
) -> ReasoningBudget | None:
    """The budget, or just the marks where a `lazy` constraint must sleep while the model thinks; None for neither.

    `opened`: the prompt leaves the model thinking. Marks without a start need it: their answers begin with thinking.
    """
    if marks is None or (asked.tokens is None and not asked.control and not lazy):
        return None
    if not marks.start and not opened:
        return None
    start, ends = encode(marks.start), [encode(end) for end in marks.ends]
    return ReasoningBudget(
        start,
        ends,
        forced=[*asked.message, *ends[0]],
        tokens=asked.tokens,
        control=asked.control,
        prefix=start if opened else [],
    )
