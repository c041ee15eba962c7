"""What the request handlers share: configuration, engine client, vocabulary, schema."""

import asyncio
import contextlib
import gc
import logging
import time
from typing import Any

from api.chat_model import ChatModel
from api.errors import ApiError
from api.probs import Probs
from api.schema import Schema
from engine.vocab import Vocab
from ipc.client import AsyncClient, EngineGone, State
from ipc.config import Config, ConfigError
from ipc.messages import Welcome

log = logging.getLogger(__name__)
VOCAB_SECONDS = 5.0  # that reading the vocabulary may delay a worker's first answer
CONNECT_SECONDS = 1.5  # that a worker's connection may lag behind the engine's readiness
RETRY_SECONDS = 1.0  # between attempts to read the vocabulary, for the file may still be on its way

REASONS = {
    State.LOADING: "Loading model",
    State.DRAINING: "The server is shutting down",
    State.STOPPING: "The server is shutting down",
    State.FAILED: "The engine is not available",
}


class Service:
    """One model behind one engine. Falcon middleware: it starts and ends with the worker."""

    def __init__(self, config: Config, client: Any = None, vocab: Any = None) -> None:
        """`client` and `vocab` are made at start-up unless given (tests)."""
        self.config = config
        self.client = client
        self.vocab = vocab
        self.schema: Schema | None = None
        self.chat_model: ChatModel | None = None
        self.chat_fault = ""  # why there will be none
        self.started = time.time()
        self.loading: asyncio.Task[None] | None = None

    async def process_startup(self, scope: dict[str, Any], event: dict[str, Any]) -> None:
        """Connect to the engine and read the vocabulary; neither needs to be there yet."""
        if self.client is None:
            config = self.config
            self.client = AsyncClient(
                config.engine_address(),
                str(config.slab_path()),
                hang_seconds=config.engine.hang_seconds,
                admission_seconds=config.http.timeout,  # a large step may keep a healthy engine busy
                max_open=config.http.worker_connections,
            )
        await self.client.start()
        self.loading = asyncio.create_task(self.load())
        # no connection is taken before, or a fresh worker would refuse what the others serve
        await asyncio.wait({self.loading}, timeout=VOCAB_SECONDS)
        if self.loading.done():
            self.loading.result()  # a fault of ours must end the start, not make a worker that refuses everything

    async def process_shutdown(self, scope: dict[str, Any], event: dict[str, Any]) -> None:
        """Disconnect."""
        if self.loading is not None:
            self.loading.cancel()
        await self.client.close()
        if self.vocab is not None:
            self.vocab.close()

    async def load(self) -> None:
        """Read the vocabulary, again and again until the file is there and whole."""
        while self.vocab is None:
            try:
                self.vocab = await asyncio.to_thread(read_vocab, self.config.model.path)
            except Exception as error:
                log.warning("The vocabulary cannot be read yet: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
        self.probs = Probs(self.vocab.pieces(self.config.engine.special))
        await self.load_chat()
        self.schema = Schema(self.config, self.vocab)
        gc.freeze()  # what is there now stays: the collector need not look at it again

    async def load_chat(self) -> None:
        """Read the templates; without usable ones the other APIs go on."""
        try:
            self.chat_model = await asyncio.to_thread(ChatModel, self.vocab, self.config.chat)
        except (ConfigError, ApiError) as error:
            self.chat_fault = f"The chat template cannot be used: {error}"
            log.error("%s", self.chat_fault)

    async def connected(self) -> None:
        """Wait for an engine that is ready but has not answered this worker yet: others may serve it already."""
        slab = None if self.client.info is not None else self.client.slab
        if slab is not None and slab.state is State.READY and slab.age() < CONNECT_SECONDS:
            with contextlib.suppress(EngineGone):
                await self.client.ready(CONNECT_SECONDS)

    def unavailable(self) -> str:
        """Why no request can be served now, "" when one can."""
        state = self.client.state() if self.client is not None else State.LOADING
        if state is State.READY and (self.client.info is None or self.schema is None):
            state = State.LOADING
        return REASONS.get(state, "")

    def check(self) -> None:
        """Raise 503 unless requests can be served."""
        reason = self.unavailable()
        if reason:
            raise ApiError(503, reason)

    @property
    def info(self) -> Welcome:
        """What the engine said about itself; raises 503 while it is not there."""
        info: Welcome | None = self.client.info
        if info is None:
            raise ApiError(503, "Loading model")
        return info

    @property
    def fields(self) -> Schema:
        """The request schema, knowing the number of slots; raises 503 while there is none."""
        if self.schema is None:
            raise ApiError(503, "Loading model")
        self.schema.n_slots = self.info.n_slots
        return self.schema

    @property
    def chat(self) -> ChatModel:
        """Templates and formats of the chat APIs; raises 503 while there are none, 500 if they are unusable."""
        if self.chat_fault:
            raise ApiError(500, self.chat_fault)
        if self.chat_model is None:
            raise ApiError(503, "Loading model")
        return self.chat_model

    @property
    def name(self) -> str:
        """The model's name in answers."""
        return self.config.model.name

    def alias(self, asked: Any) -> str:
        """The name that an answer shows: the alias that was asked for, else the first one."""
        return asked if asked in self.config.model.alias else self.name


def read_vocab(path: str | None) -> Vocab:
    """The vocabulary with its tables made, so that no request waits for them."""
    if path is None:
        raise FileNotFoundError("no model is configured")
    vocab = Vocab.load(path)
    vocab.pieces(True)
    vocab.pieces(False)
    _ = vocab.eog
    return vocab
