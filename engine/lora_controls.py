"""Answers what clients ask of the LoRA adapters: list, scale, load and drop them."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from engine.adapters import AdapterError, Adapters
from engine.gguf import ModelError
from engine.lora import Adapter
from engine.sequences import Sequences
from ipc.messages import DropLora, Error, Failure, GetLora, LoadLora, LoraReply, SetLora
from ipc.server import Server

LoraControl = GetLora | SetLora | LoadLora | DropLora


@dataclass(eq=False)
class LoraControls:
    """Files are read on another thread; a loaded adapter is taken between two decode steps."""

    adapters: Adapters
    sequences: Sequences
    server: Server
    load: Callable[[str], Adapter]
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "lora"))
    _loading: list[tuple[bytes, LoadLora, "Future[Adapter]"]] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        """Whether an adapter is being loaded."""
        return bool(self._loading)

    def handle(self, client: bytes, message: LoraControl) -> None:
        try:
            match message:
                case LoadLora():
                    self._loading.append((client, message, self._pool.submit(self.load, message.path)))
                    return
                case SetLora():
                    self.adapters.set_scales(message.scales)
                case DropLora():
                    self._drop(message.adapter)
                case GetLora():
                    pass
            self._reply(client, message.id)
        except AdapterError as problem:
            self._fail(client, message.id, str(problem))

    def take_loaded(self) -> None:
        """Make adapters whose files have been read available."""
        for entry in [entry for entry in self._loading if entry[2].done()]:
            self._loading.remove(entry)
            client, message, future = entry
            try:
                self.adapters.add(future.result(), message.scale)
                self._reply(client, message.id)
            except (ModelError, OSError) as problem:
                self._fail(client, message.id, str(problem))

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _drop(self, number: int) -> None:
        for sequence in self.sequences.all():
            if any(used == number for used, _ in sequence.adapters[0]):
                raise AdapterError(f"LoRA adapter {number} is in use by a running request")
        self.adapters.drop(number)

    def _reply(self, client: bytes, request: int) -> None:
        self.server.send(client, LoraReply(request, self.adapters.states()))

    def _fail(self, client: bytes, request: int, text: str) -> None:
        self.server.send(client, Failure(request, Error(400, "invalid_request_error", text)))
