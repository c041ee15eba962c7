"""A real engine on a real model in the test's own process, driven step by step without sockets."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from engine.assemble import assemble
from engine.contexts import open_context
from engine.model import Model
from ipc.config import Config, EngineSection, ModelSection
from tests.step_engine import FakeServer, FakeSlab, Stepped


class RealEngine(Stepped):
    """`settings` are those of the engine's section. Use it in a `with`.

    As it is set here, the shape of a batch changes no digit of the logits, so that texts can be compared.
    """

    def __init__(self, path: Path, **settings: Any) -> None:
        settings = {"threads": 1, "cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off", **settings}
        config = Config(model=ModelSection(path=str(path)), engine=EngineSection(**settings))
        with ExitStack() as stack:
            self.model = Model.load(path)
            stack.callback(self.model.close)
            self.context = open_context(self.model, config.engine)
            stack.callback(self.context.close)
            self.server = FakeServer()
            self.engine = assemble(config, self.model, self.context, [], self.server, FakeSlab())  # type: ignore[arg-type]
            self.slots = self.engine.slots
            self._stack = stack.pop_all()

    def run(self, limit: int = 20_000) -> None:
        """Step until nothing is left to do, a minute at most."""
        deadline = time.monotonic() + 60
        while self.server.incoming or self.engine._n_open:
            assert time.monotonic() < deadline, "not done after a minute"
            self.engine.step()

    def stop(self) -> None:
        """As the engine process ends."""
        self.engine.stop()
        self.engine.run()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._stack.close()

    def generate(self, prompt: list[int], n: int = 16, **fields: Any) -> tuple[list[int], int]:
        """The generated tokens, and how many of the prompt were found evaluated."""
        task = self.submit(prompt, n, **fields)
        self.run()
        assert self.final(task).error is None, self.final(task)
        check_positions(self)
        return self.tokens(task), self.final(task).timings.cache_n


def check_positions(engine: RealEngine) -> None:
    """Our account of every slot equals libllama's."""
    for slot in engine.slots:
        assert engine.context.seq_pos_max(slot.id) == slot.n_past - 1
