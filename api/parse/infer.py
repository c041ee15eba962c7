"""The format of a template that belongs to no known family, found by rendering it with things changed one by one."""

from dataclasses import replace

from api.parse.calls import JsonCalls
from api.parse.events import LONG_ID, SHORT_ID
from api.parse.families import THINK
from api.parse.format import Format
from api.parse.infer_calls import infer_calls
from api.parse.layout import NO_MARKS, Pair, Thinking
from api.parse.tags import TagCalls
from api.parse.trial import (
    ANSWERED,
    FIRST,
    ID_A,
    KEY_A,
    MARK,
    THOUGHT,
    Render,
    Trial,
    call,
    closing,
    first_mark,
    from_mark,
    last_mark,
    shared_end,
)

COHERE = ("<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>")


class FormatError(Exception):
    """The template cannot be used for what was asked of it."""


def infer(source: str, render: Render) -> Format:
    """The format of the template `source`. Raises `FormatError` if not even a plain conversation renders."""
    trial = Trial(render)
    if trial.prompt([]) is None:
        reason = "it renders no conversation of one user message"
        raise FormatError(f"Unable to generate parser for this template. Automatic parser generation failed: {reason}")
    thinking = find_thinking(trial)
    content = find_content(trial, thinking)
    calls = infer_calls(trial, thinking)
    format = Format("automatic", thinking, content, calls, noise=find_noise(trial, thinking, content))
    if needs_short_ids(trial):
        format = with_short_ids(format)
    return mended(format, source)


def find_thinking(trial: Trial) -> Thinking | None:
    """How thinking is marked: by what surrounds it in a past answer, else by what the prompt begins or ends with."""
    for with_calls in (False, True):
        calls = [call(FIRST, ID_A)]
        more = {"reasoning_content": THOUGHT}
        text = trial.calls(*calls, **more) if with_calls else trial.answer(**more)
        if text and THOUGHT in text:
            plain = (trial.calls(*calls) if with_calls else trial.answer()) or ""
            return around_thought(trial, text, plain)
    return opened_thinking(trial.opening(), trial.opening(thinking=False))


def around_thought(trial: Trial, text: str, plain: str) -> Thinking | None:
    """The marks around a past thought."""
    before, after = text.split(THOUGHT, 1)
    opening = trial.opening()
    start = last_mark(before) or (last_mark(opening) if not before.strip() else "")
    end = first_mark(after.split(ANSWERED)[0]) or after.split(ANSWERED)[0].strip()
    if (start and start == last_mark(plain.split(ANSWERED)[0])) or not is_thinking_mark(start, opening, before):
        start = ""
    if not end:
        return None
    if start == end or start.startswith("</"):
        start = end.replace("/", "", 1)
    return Thinking(start, end)


def is_thinking_mark(mark: str, opening: str, before: str) -> bool:
    """Whether `mark` opens thinking, and is not just the end of the turn's header."""
    return bool(before.strip()) or any(word in mark.lower() for word in ("think", "reason", "thought"))


def opened_thinking(thinking: str, silent: str) -> Thinking | None:
    """The marks that the generation prompts show, with thinking on and off."""
    if is_thinking_mark(mark := last_mark(thinking), thinking, ""):
        return Thinking(mark, closing(mark)) if "/" not in mark else None
    marks = [found.group() for found in MARK.finditer(silent.removeprefix(thinking))] if thinking != silent else []
    if len(marks) == 2 and is_thinking_mark(marks[0], silent, ""):
        return Thinking(marks[0], marks[1])
    if len(marks) == 1 and is_thinking_mark(marks[0], silent, "") and "/" in marks[0]:
        return Thinking(marks[0].replace("/", "", 1), marks[0])
    return None


def find_content(trial: Trial, thinking: Thinking | None) -> Pair:
    """The marks that always surround an answer's content."""
    text = trial.answer()
    calls = trial.calls(call(FIRST, ID_A))
    if not text or ANSWERED not in text or not calls or KEY_A not in calls:
        return NO_MARKS
    before, after = text.split(ANSWERED, 1)
    for mark in (thinking.start, thinking.end) if thinking else ():
        before = before.replace(mark, "") if mark else before
    end = after.removesuffix(from_mark(shared_end(after, calls)))
    start = last_mark(before)
    return Pair(start, first_mark(end)) if start and first_mark(end) else NO_MARKS


def find_noise(trial: Trial, thinking: Thinking | None, content: Pair) -> tuple[str, ...]:
    """What stands between thinking and content without a meaning, such as the header of another turn."""
    text = trial.answer(reasoning_content=THOUGHT) if thinking else None
    if not text or not thinking or THOUGHT not in text or ANSWERED not in text:
        return ()
    between = text.partition(THOUGHT)[2].partition(ANSWERED)[0].replace(thinking.end, "", 1).strip()
    between = between.removesuffix(content.start).strip()
    return (between,) if between and MARK.search(between) else ()


def needs_short_ids(trial: Trial) -> bool:
    """Whether the template refuses ids that are not of nine characters, as Mistral's do."""
    return trial.calls(call(FIRST, "a" * LONG_ID)) is None and trial.calls(call(FIRST, "a" * SHORT_ID)) is not None


def with_short_ids(format: Format) -> Format:
    """`format` with ids of nine characters only."""
    calls = format.calls
    if isinstance(calls, JsonCalls | TagCalls):
        calls = replace(calls, id_pattern=f"/[A-Za-z0-9]{{{SHORT_ID}}}/")
    return replace(format, calls=calls, id_length=SHORT_ID)


def mended(format: Format, source: str) -> Format:
    """`format` with what is known about templates that show less than their models write."""
    if format.thinking is None and "content.split('</think>')" in source:
        format = replace(format, thinking=THINK)
    if "write your response between <response></response>" in source:
        format = replace(format, thinking=THINK, content=Pair("<response>", "</response>"))
    if format.calls is None and "respond only with <|tool_call|> followed by a JSON list of tools" in source:
        format = replace(format, calls=JsonCalls(section=Pair("<|tool_call|>"), array=True))
    if all(mark in source for mark in COHERE) and not format.content.start:
        format = replace(format, noise=COHERE)
    if "<SPECIAL_12>" in source and "<TOOLCALL>" in source:
        format = replace(format, thinking=THINK)
    if "laguna_glm_thinking" in source:
        format = replace(format, stops=("</assistant>",), noise=("</assistant>",))
    return format
