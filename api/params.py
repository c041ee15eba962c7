"""A validated request: what goes to the engine for each completion, and what only shapes the answer."""

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from ipc.messages import LoraScale, Sampling, Task

EMPTY = b""


class Thinking(Struct):
    """The reasoning fields as they came; token ids as the engine needs them."""

    start: list[int] = []
    ends: list[list[int]] = []
    tokens: int | None = None
    message: list[int] = []
    control: bool = False


class Lazy(Struct):
    """When a constraint wakes up."""

    lazy: bool = False
    triggers: list[dict[str, object]] = []


class Params(Struct):
    """`task` is the template of every completion of the request; the rest stays in the worker."""

    task: Task = field(default_factory=lambda: Task(0, EMPTY, Sampling()))
    n: int = 1
    include_usage: bool = False
    verbose: bool = False
    echo: bool = False
    return_tokens: bool = False
    response_fields: list[str] = []
    ping: int | None = None  # seconds of silence before a comment is sent; None: never
    prompt_logprobs: int | None = None
    backend_sampling: bool = False
    lazy: Lazy = field(default_factory=Lazy)
    thinking: Thinking = field(default_factory=Thinking)
    reasoning_format: str = "auto"
    generation_prompt: str = ""
    chat_format: str = "Content-only"

    @property
    def stream(self) -> bool:
        """Whether the answer goes out piece by piece."""
        return self.task.stream

    def tasks(self, tokens: np.ndarray) -> list[Task]:
        """One task per completion of one prompt; the seed of the i-th is `seed` + i."""
        data = np.ascontiguousarray(tokens, "<i4").tobytes()
        return [self.one(data, i) for i in range(self.n)]

    def one(self, data: bytes, i: int) -> Task:
        """The task of completion `i`; only the first may be pinned to a slot."""
        task = replace(self.task, tokens=data)
        if i:
            seed = task.sampling.seed
            task.slot = None
            task.sampling = replace(task.sampling, seed=None if seed is None else (seed + i) % 2**32)
        return task


def new_params(sampling: Sampling, lora: list[LoraScale] | None = None) -> Params:
    """Parameters that hold a copy of `sampling`, ready to be filled in."""
    return Params(Task(0, EMPTY, replace(sampling), lora=lora))
