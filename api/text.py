"""OpenAI's text completions: `spec/generation.md` §8.2 with `spec/decisions.md`."""

import time
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from api.generate import Chunk, Completion
from api.native import Native
from api.params import Params
from api.probs import Legacy, Scored
from api.results import finish_reason, progress_shown, random_id, timings_shown, usage_of
from api.service import Service
from api.stream import error_event, event
from ipc.messages import Task

encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


class Choice(Struct):
    """One completion, or a piece of it."""

    text: str
    index: int
    logprobs: Legacy | None = None
    finish_reason: str | None = None


class TextCompletion(Struct):
    """The whole answer, or one chunk of a stream."""

    choices: list[Choice]
    created: int
    model: str
    system_fingerprint: str
    id: str
    object: str = "text_completion"
    usage: dict[str, Any] | UnsetType = UNSET
    timings: dict[str, Any] | UnsetType = UNSET
    prompt_progress: dict[str, Any] | UnsetType = UNSET
    verbose: Any = msgspec.field(default=UNSET, name="__verbose")


class Text:
    """The `Shape` of text completions."""

    error = staticmethod(error_event)

    def __init__(
        self, service: Service, params: Params, tasks: list[Task], model: str, echoes: list[str] | None = None
    ) -> None:
        """`echoes`: for each task the prompt to put in front of its text."""
        self.service = service
        self.params = params
        self.tasks = tasks
        self.model = model
        self.echoes = echoes
        self.native = Native(service, params, tasks, model)
        self.id = random_id("chatcmpl-")
        self.created = int(time.time())
        self.build = service.info.build
        self.completions = [Completion() for _ in tasks]
        self.offsets = [0 for _ in tasks]  # characters sent
        self.echoed = [echoes is None for _ in tasks]

    def write(self, chunk: Chunk) -> bytes:
        completion = self.completions[chunk.index]
        completion.count(chunk)
        completion.prompt_probs += chunk.prompt_probs
        if chunk.prompt_probs:
            return b""
        if chunk.progress is not None:
            return self.chunk(Choice("", chunk.index), chunk)
        return self.echo(chunk.index) + self.piece(chunk, completion)

    def echo(self, index: int) -> bytes:
        """The chunk with the prompt, once."""
        if self.echoed[index]:
            return b""
        self.echoed[index] = True
        return event(encode(self.object([self.prompt_choice(index, self.completions[index])])))

    def piece(self, chunk: Chunk, completion: Completion) -> bytes:
        """The chunk for new text or for the end."""
        if chunk.final is not None:
            return self.chunk(Choice("", chunk.index, finish_reason=finish_reason(chunk.final)), chunk)
        logprobs = self.logprobs(chunk.probs, chunk.tokens, self.offsets[chunk.index])
        self.offsets[chunk.index] += len(chunk.text)
        return self.chunk(Choice(chunk.text, chunk.index, logprobs), chunk)

    def chunk(self, choice: Choice, chunk: Chunk) -> bytes:
        """One chunk of the stream with what belongs beside its choice."""
        shown = self.object([choice])
        if chunk.timings is not None:
            shown.timings = timings_shown(chunk.timings)
        if chunk.progress is not None:
            shown.prompt_progress = progress_shown(chunk.progress)
        if chunk.final is not None:
            shown.usage = self.usage(self.completions)
        if self.params.verbose:
            shown.verbose = self.verbose(chunk)
        return event(encode(shown))

    def verbose(self, chunk: Chunk) -> Any:
        """The native result for a chunk."""
        completion = self.completions[chunk.index]
        if chunk.final is not None:
            return self.native.final(chunk.index, completion)
        return self.native.partial(chunk, completion.n_decoded)

    def end(self) -> bytes:
        if not self.params.include_usage:
            return DONE
        last = self.object([])
        last.usage = self.usage(self.completions)
        return event(encode(last)) + DONE

    def whole(self, completions: list[Completion]) -> bytes:
        shown = self.object([self.choice(index, completion) for index, completion in enumerate(completions)])
        shown.usage = self.usage(completions)
        first = completions[0].final
        assert first is not None
        shown.timings = timings_shown(first.timings)
        if self.params.verbose:
            shown.verbose = self.native.final(0, completions[0])
        return encode(shown)

    def choice(self, index: int, completion: Completion) -> Choice:
        """A whole completion, with its prompt in front when that was asked for."""
        assert completion.final is not None
        scored, tokens = completion.probs, completion.tokens
        if scored:
            scored = self.native.without_stop(scored, completion.final.stopping_word)
            tokens = tokens[: len(scored)]
        text = completion.text
        if self.echoes is not None:
            text = self.echoes[index] + text
            tokens = [*self.prompt_tokens(index), *tokens]
            scored = [*self.prompt_scores(completion), *scored] if self.params.task.n_probs else []
        return Choice(text, index, self.logprobs(scored, tokens, 0), finish_reason(completion.final))

    def prompt_choice(self, index: int, completion: Completion) -> Choice:
        """The prompt as the first piece of a stream."""
        assert self.echoes is not None
        text = self.echoes[index]
        self.offsets[index] = len(text)
        scored = self.prompt_scores(completion) if self.params.task.n_probs else []
        return Choice(text, index, self.logprobs(scored, self.prompt_tokens(index), 0))

    def prompt_tokens(self, index: int) -> list[int]:
        """The ids of a completion's prompt."""
        return memoryview(self.tasks[index].tokens).cast("i").tolist()

    def prompt_scores(self, completion: Completion) -> list[Scored | None]:
        """One entry per prompt token; nothing predicts the first one."""
        return [None, *completion.prompt_probs]

    def logprobs(self, scored: list[Scored | None], tokens: list[int], offset: int) -> Legacy | None:
        """`logprobs`, null when there are none."""
        return self.service.probs.legacy(scored, tokens[: len(scored)], offset) if scored else None

    def object(self, choices: list[Choice]) -> TextCompletion:
        """An answer with what all chunks have in common."""
        return TextCompletion(choices, self.created, self.model, self.build, self.id)

    def usage(self, completions: list[Completion]) -> dict[str, Any]:
        """Of the completions that have ended."""
        n = self.params.n
        groups = [completions[start : start + n] for start in range(0, len(completions), n)]
        return usage_of([[one.final for one in group if one.final is not None] for group in groups])
