"""llama-server's own result objects: /completion and /infill; `spec/generation.md` §8.1."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from api.generate import Chunk, Completion
from api.params import Params
from api.probs import Scored
from api.results import nested, progress_shown, timings_shown
from api.service import Service
from api.stream import error_event, event
from ipc.messages import Task

encode = msgspec.json.Encoder().encode


class Partial(Struct):
    """A piece of a streamed answer."""

    index: int
    content: str
    tokens: list[int]
    tokens_predicted: int
    tokens_evaluated: int
    stop: bool = False
    id_slot: int = -1
    timings: dict[str, Any] | UnsetType = UNSET
    prompt_progress: dict[str, Any] | UnsetType = UNSET
    completion_probabilities: list[Raw] | UnsetType = UNSET


class Native:
    """The `Shape` of native results."""

    error = staticmethod(error_event)

    def __init__(self, service: Service, params: Params, tasks: list[Task], model: str) -> None:
        self.service = service
        self.schema = service.fields
        self.params = params
        self.tasks = tasks
        self.model = model
        self.completions = [Completion() for _ in tasks]

    def write(self, chunk: Chunk) -> bytes:
        completion = self.completions[chunk.index]
        completion.count(chunk)
        completion.prompt_probs += chunk.prompt_probs
        if chunk.final is not None:
            return event(encode(self.final(chunk.index, completion)))
        if chunk.prompt_probs:
            return b""
        return event(encode(self.partial(chunk, completion.n_decoded)))

    def end(self) -> bytes:
        return b""

    def whole(self, completions: list[Completion]) -> bytes:
        results = [self.final(index, completion) for index, completion in enumerate(completions)]
        return encode(results[0] if len(results) == 1 else results)

    def partial(self, chunk: Chunk, n_decoded: int) -> Partial:
        """A chunk that is not the last one."""
        return Partial(
            chunk.index,
            chunk.text,
            chunk.tokens,
            n_decoded,
            len(self.tasks[chunk.index].tokens) // 4,
            timings=UNSET if chunk.timings is None else timings_shown(chunk.timings),
            prompt_progress=UNSET if chunk.progress is None else progress_shown(chunk.progress),
            completion_probabilities=self.listed(chunk.probs) if chunk.probs else UNSET,
        )

    def final(self, index: int, completion: Completion) -> dict[str, Any]:
        """The last result of a completion; all of it unless it was streamed."""
        final, task = completion.final, self.tasks[index]
        assert final is not None
        result: dict[str, Any] = {
            "index": index,
            "content": completion.text,
            "tokens": completion.tokens if self.params.return_tokens else [],
            "id_slot": final.slot,
            "stop": True,
            "model": self.model,
            "tokens_predicted": final.timings.predicted_n,
            "tokens_evaluated": final.n_prompt,
            "generation_settings": self.settings(task, final.seed),
            "prompt": self.prompt(task),
            "has_new_line": final.has_new_line,
            "truncated": final.truncated,
            "stop_type": final.reason,
            "stopping_word": final.stopping_word,
            "tokens_cached": final.n_past,
            "timings": timings_shown(final.timings),
        }
        if completion.probs:
            kept = self.without_stop(completion.probs, final.stopping_word)
            result["completion_probabilities"] = self.listed(kept)
        if self.params.prompt_logprobs is not None:
            result["prompt_probabilities"] = [None, *self.listed(completion.prompt_probs)]
        return nested(self.params.response_fields, result) if self.params.response_fields else result

    def settings(self, task: Task, seed: int) -> dict[str, Any]:
        """`generation_settings` with the seed that was really used."""
        shown = msgspec.structs.replace(self.params, task=task)
        return {**self.schema.settings(shown), "seed": seed}

    def prompt(self, task: Task) -> str:
        """The prompt as text, special tokens included."""
        raw: bytes = self.service.vocab.decode(memoryview(task.tokens).cast("i").tolist(), special=True)
        return raw.decode("utf-8", "replace")

    def listed(self, scored: list[Scored | None]) -> list[Raw]:
        """`completion_probabilities`; tokens without a list are left out."""
        return self.service.probs.items([one for one in scored if one is not None])

    def without_stop(self, scored: list[Scored | None], word: str) -> list[Scored | None]:
        """The entries without those of the stop word, which is not part of the text."""
        if not word:
            return scored
        n = len(self.service.vocab.encode(word, add_special=False, parse_special=False))
        return scored[: max(len(scored) - n, 0)]
