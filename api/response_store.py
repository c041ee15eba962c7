"""Stored responses of the Responses API: one SQLite file that all workers share."""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from api.errors import ApiError, invalid
from api.responses_items import Item

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_RESPONSES = 10_000
MAX_BYTES = 256 << 20  # of all responses together; the file is a little larger
MAX_CHAIN = 1_000  # responses that one conversation may have
BUSY_SECONDS = 5.0  # that a worker waits for another one's write

TABLES = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, previous TEXT, used INTEGER NOT NULL, size INTEGER NOT NULL,
    items BLOB NOT NULL, response BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS responses_by_use ON responses (used);
"""
SAVE = "INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?)"
LOAD = "SELECT id, previous, items, response FROM responses WHERE id = ?"
TOUCH = "UPDATE responses SET used = ? WHERE id = ?"
TOTALS = "SELECT count(*), coalesce(sum(size), 0) FROM responses"
OLDEST = "SELECT id, size FROM responses ORDER BY used LIMIT 100"
DELETE = "DELETE FROM responses WHERE id = ?"


class Stored(Struct):
    """One response: what came in by its own request, and the response itself."""

    id: str
    previous: str | None
    items: bytes  # JSON array
    response: bytes  # JSON object


class Output(Struct):
    """The part of a stored response that a conversation goes on from."""

    output: list[Raw] = []


class ResponseStore:
    """Keeps the newest responses, bounded in number and bytes. The file is opened at the first use.

    Falcon middleware: it ends with the worker. SQLite is spoken to by one thread, so that a worker that waits for
    another one still serves its streams.
    """

    def __init__(self, path: str, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self.path = Path(path)
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="responses")
        self.database: sqlite3.Connection | None = None

    async def save(self, stored: Stored) -> None:
        """Store a response and drop the oldest ones beyond the bounds. A failure is only logged."""
        try:
            await self.run(lambda: self.write(stored))
        except ApiError as error:
            log.error("Response %s is not stored: %s", stored.id, error.message)

    async def load(self, id: str) -> Stored | None:
        """A response, None if there is none of that id."""
        return await self.run(lambda: self.read(id))

    async def delete(self, id: str) -> bool:
        """Forget a response; False if there was none of that id."""
        return await self.run(lambda: self.connection().execute(DELETE, (id,)).rowcount > 0)

    async def conversation(self, id: str) -> list[Item]:
        """All items of a response and of those it continues, oldest first. Raises `ApiError` if one is missing."""
        return await self.run(lambda: self.items_of(id))

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` in the store's thread; SQLite's errors are a 503."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, work)
        except (sqlite3.Error, OSError) as error:
            raise ApiError(503, f"The store of responses is not available: {error}") from error

    async def process_shutdown(self, scope: dict[str, Any], event: dict[str, Any]) -> None:
        """Falcon's hook at a worker's end: close the file."""
        await self.run(self.disconnect)
        self.thread.shutdown(wait=False)

    # what follows runs in the store's thread

    def connection(self) -> sqlite3.Connection:
        """The open database."""
        if self.database is None:
            self.database = connect(self.path)
        return self.database

    def disconnect(self) -> None:
        """As `process_shutdown`."""
        if self.database is not None:
            self.database.close()
            self.database = None

    def write(self, stored: Stored) -> None:
        """As `save`."""
        size = len(stored.items) + len(stored.response)
        if size > self.max_bytes:
            raise ApiError(413, f"it has {size} bytes, all stored responses together may have {self.max_bytes}")
        row = (stored.id, stored.previous, time.time_ns(), size, stored.items, stored.response)
        database = self.connection()
        with transaction(database):
            database.execute(SAVE, row)
            self.trim(database)

    def trim(self, database: sqlite3.Connection) -> None:
        """Drop the responses that were used longest ago until the rest is within the bounds."""
        count, size = database.execute(TOTALS).fetchone()
        while count > self.max_responses or size > self.max_bytes:
            for id, bytes in database.execute(OLDEST).fetchall():
                if count <= self.max_responses and size <= self.max_bytes:
                    return
                database.execute(DELETE, (id,))
                count, size = count - 1, size - bytes

    def read(self, id: str) -> Stored | None:
        """As `load`."""
        row = self.connection().execute(LOAD, (id,)).fetchone()
        return None if row is None else Stored(*row)

    def items_of(self, id: str) -> list[Item]:
        """As `conversation`."""
        chain = self.chain(id)
        database = self.connection()
        with transaction(database):
            for stored in chain:
                database.execute(TOUCH, (time.time_ns(), stored.id))
        items: list[Item] = []
        for stored in reversed(chain):
            items += msgspec.json.decode(stored.items)
            items += [msgspec.json.decode(item) for item in msgspec.json.decode(stored.response, type=Output).output]
        return items

    def chain(self, id: str) -> Sequence[Stored]:
        """A response and those it continues, newest first."""
        chain: list[Stored] = []
        wanted: str | None = id
        while wanted is not None:
            stored = self.read(wanted)
            if stored is None:
                raise missing(id, wanted)
            if len(chain) == MAX_CHAIN:
                raise invalid(f"'previous_response_id': the conversation has more than {MAX_CHAIN} responses")
            chain.append(stored)
            wanted = stored.previous
        return chain


def missing(asked: str, id: str) -> ApiError:
    """The error for a response that is not there (any more), or that continues such a one."""
    if asked == id:
        return ApiError(400, f"Previous response with id '{id:.100}' not found.", param="previous_response_id")
    text = f"Previous response '{asked:.100}' continues '{id:.100}', which is not stored any more."
    return ApiError(400, text, param="previous_response_id")


def connect(path: Path) -> sqlite3.Connection:
    """The database at `path`, made if need be; only its owner may read it."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.executescript(TABLES)
    return database


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. The write lock is taken at the start: a later upgrade would not wait for another writer."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")
