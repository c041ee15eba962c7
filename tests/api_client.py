"""The HTTP application in the test's own event loop, with a fake engine behind it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falcon.testing import ASGIConductor, ASGIRequestEventEmitter, Result, create_scope
from msgspec.structs import replace

from api.routes import create_app
from ipc.client import AsyncClient
from ipc.config import Config, HttpSection, ModelSection
from tests.fake_engine import FakeEngine, Script
from tests.tiny_vocab import TinyVocab

CONFIG = replace(
    Config(), model=ModelSection(path="fake.gguf", alias=("tiny", "other")), http=HttpSection(metrics=True)
)


class OpenStream:
    """The bytes of an answer as they come."""

    def __init__(self) -> None:
        self.status = 0
        self.parts: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(self, event: Any) -> None:
        """The application's `send`."""
        if event["type"] == "http.response.start":
            self.status = event["status"]
        else:
            await self.parts.put(event.get("body", b""))

    async def part(self) -> bytes:
        """The next piece; b"" is the end."""
        return await self.parts.get()

    async def rest(self) -> str:
        """All the rest."""
        text = b""
        while part := await self.part():
            text += part
        return text.decode()


@dataclass
class Api:
    """Requests to the application."""

    http: ASGIConductor
    engine: FakeEngine
    client: AsyncClient

    async def get(self, path: str, **options: Any) -> Result:
        return await self.http.simulate_get(path, **options)

    async def post(self, path: str, body: Any, **options: Any) -> Result:
        return await self.http.simulate_post(path, body=json.dumps(body), **options)

    async def json(self, path: str, body: Any) -> Any:
        """The decoded answer, which must be a success."""
        result = await self.post(path, body)
        assert result.status_code == 200, result.text
        return result.json

    async def events(self, path: str, body: Any) -> list[Any]:
        """The decoded events of a stream; "[DONE]" as text."""
        result = await self.post(path, {**body, "stream": True})
        assert result.headers["content-type"] == "text/event-stream", result.text
        return events(result.text)

    @asynccontextmanager
    async def open(self, path: str, body: Any) -> AsyncIterator["OpenStream"]:
        """A stream that is read while it runs; leaving the block before its end is what a leaving client does."""
        stream = OpenStream()
        scope = create_scope(method="POST", path=path)
        events = ASGIRequestEventEmitter(json.dumps({**body, "stream": True}).encode())
        task = asyncio.create_task(self.http.app(scope, events, stream.send))
        try:
            yield stream
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def error(self, path: str, body: Any) -> tuple[int, str, str]:
        """Status, type and message of an error."""
        result = await self.post(path, body)
        error = result.json["error"]
        assert error["code"] == result.status_code
        return result.status_code, error["type"], error["message"]


def events(text: str) -> list[Any]:
    """The decoded `data` of a stream's text; comments are left out."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") for block in blocks)
    return [block if block == "[DONE]" else json.loads(block) for block in (block[6:] for block in blocks)]


@asynccontextmanager
async def running(
    folder: Path,
    script: Script | None = None,
    config: Config = CONFIG,
    *,
    vocab: TinyVocab | None = None,
    wait: bool = True,
) -> AsyncIterator[Api]:
    """Application and engine, started and ended."""
    script = script or Script()
    script.n_vocab = TinyVocab.n_tokens
    with FakeEngine(folder, script=script) as engine:
        client = AsyncClient(engine.address, engine.slab_path)
        try:
            async with ASGIConductor(create_app(config, client, vocab or TinyVocab())) as http:
                if wait:
                    await client.ready(5)
                yield Api(http, engine, client)
        finally:
            await client.close()  # falcon does not end the lifespan of a test that fails


def run(
    test: Callable[[Api], Awaitable[None]],
    folder: Path,
    script: Script | None = None,
    config: Config = CONFIG,
    vocab: TinyVocab | None = None,
) -> None:
    """Run one test coroutine."""

    async def main() -> None:
        async with asyncio.timeout(20), running(folder, script, config, vocab=vocab) as api:
            await test(api)

    asyncio.run(main())


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait until `condition()` holds; fails when it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
