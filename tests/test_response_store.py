"""The file of stored responses: bounds, chains, several processes."""

import asyncio
import multiprocessing
import sqlite3
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from api.errors import ApiError
from api.response_store import ResponseStore, Stored

N_WRITERS, N_EACH = 3, 15


def response(id: str, previous: str | None = None, text: str = "") -> Stored:
    """A response to the question `id` with one message."""
    items = [{"role": "user", "content": f"{id}?"}]
    output = [{"type": "message", "role": "assistant", "content": f"{id}!{text}"}]
    return Stored(id, previous, msgspec.json.encode(items), msgspec.json.encode({"id": id, "output": output}))


def run(folder: Path, test: Callable[[ResponseStore], Awaitable[None]], **bounds: int) -> None:
    """Run a test with a store of its own."""

    async def main() -> None:
        store = ResponseStore(str(folder / "responses.db"), **bounds)
        try:
            async with asyncio.timeout(20):
                await test(store)
        finally:
            await store.process_shutdown({}, {})

    asyncio.run(main())


async def said(store: ResponseStore, id: str) -> list[str]:
    """The texts of a conversation."""
    return [item["content"] for item in await store.conversation(id)]


async def ids(store: ResponseStore, *wanted: str) -> str:
    """Those of `wanted` that are stored."""
    return " ".join([id for id in wanted if await store.load(id) is not None])


def test_a_conversation_is_the_chain_of_its_responses(tmp_path: Path) -> None:
    async def test(store: ResponseStore) -> None:
        for one in (response("a"), response("b", "a"), response("c", "b"), response("x", "a")):
            await store.save(one)
        assert await said(store, "c") == ["a?", "a!", "b?", "b!", "c?", "c!"]
        assert await said(store, "x") == ["a?", "a!", "x?", "x!"]

    run(tmp_path, test)


def test_a_broken_chain_is_an_error(tmp_path: Path) -> None:
    async def test(store: ResponseStore) -> None:
        await store.save(response("b", "a"))
        with pytest.raises(ApiError, match="'b' continues 'a', which is not stored any more"):
            await store.conversation("b")
        with pytest.raises(ApiError, match="'nope' not found"):
            await store.conversation("nope")

    run(tmp_path, test)


def test_the_oldest_make_room(tmp_path: Path) -> None:
    async def test(store: ResponseStore) -> None:
        for id in "abcde":
            await store.save(response(id))
        assert await ids(store, *"abcde") == "c d e"

    run(tmp_path, test, max_responses=3)


def test_a_conversation_that_goes_on_is_not_old(tmp_path: Path) -> None:
    async def test(store: ResponseStore) -> None:
        for id in "abc":
            await store.save(response(id))
        await store.conversation("a")
        await store.save(response("d"))
        assert await ids(store, *"abcd") == "a c d"

    run(tmp_path, test, max_responses=3)


def test_bytes_are_bounded(tmp_path: Path) -> None:
    async def test(store: ResponseStore) -> None:
        for id in "abc":
            await store.save(response(id, text="x" * 300))
        assert await ids(store, *"abc") == "b c"
        await store.save(response("d", text="x" * 2000))
        assert await ids(store, *"abcd") == "b c", "what is larger than all room is not stored and displaces nothing"

    run(tmp_path, test, max_bytes=900)


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    async def test(store: ResponseStore) -> None:
        await store.save(response("a"))
        assert stat.S_IMODE(store.path.stat().st_mode) == 0o600

    run(tmp_path, test)


def test_a_file_that_is_no_database_is_an_error_of_the_request_alone(tmp_path: Path) -> None:
    (tmp_path / "responses.db").write_text("no database at all, but long enough to have a header" * 9)

    async def test(store: ResponseStore) -> None:
        await store.save(response("a"))  # only logged: the answer goes out all the same
        with pytest.raises(ApiError) as raised:
            await store.load("a")
        assert raised.value.code == 503

    run(tmp_path, test)


def write_many(folder: Path, name: int) -> None:
    """One process that stores responses."""

    async def test(store: ResponseStore) -> None:
        for i in range(N_EACH):
            await store.save(response(f"{name}-{i}", f"{name}-{i - 1}" if i else None))
            await store.conversation(f"{name}-{i}")

    run(folder, test)


def test_several_processes_share_the_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(tmp_path, name)) for name in range(N_WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * N_WRITERS
    with sqlite3.connect(tmp_path / "responses.db") as database:
        assert database.execute("SELECT count(*) FROM responses").fetchone() == (N_WRITERS * N_EACH,)
