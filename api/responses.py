"""POST /v1/responses and what can be asked of stored responses: `spec/chat.md` §8, `docs/responses.md`."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from falcon.asgi import Request, Response

from api.body import read_object
from api.chat_plan import start_chat
from api.chat_run import ChatRun, respond_chat
from api.errors import ApiError, encode, invalid, unsupported
from api.response_store import ResponseStore, Stored
from api.responses_items import Item
from api.responses_request import ResponseRequest, previous_id, read_request
from api.responses_shape import ResponsesShape
from api.results import random_id
from api.service import Service

NO_STORE = "This server does not store responses. Start it with `--responses-db FILE`"
PAGE, MAX_PAGE = 20, 100


class ResponsesEndpoint:
    """What the endpoints with a Responses request as their body have in common."""

    def __init__(self, service: Service, store: ResponseStore | None) -> None:
        self.service = service
        self.store = store

    async def read(self, req: Request) -> tuple[ResponseRequest, ChatRun]:
        """The request, and the chat that answers it, ready to be submitted."""
        body = await read_object(req, self.service.config.http.max_body_mib)
        request = read_request(body, await self.earlier(previous_id(body)))
        run = await start_chat(self.service, request.chat)
        run.warnings = [*request.warnings, *run.warnings]
        return request, run

    async def earlier(self, previous: str | None) -> list[Item]:
        """What was said in the response that a request continues and in those before."""
        if previous is None:
            return []
        if self.store is None:
            raise invalid(f"'previous_response_id' is not supported: {NO_STORE}")
        return await self.store.conversation(previous)


class Responses(ResponsesEndpoint):
    """POST /v1/responses, /responses."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Generate."""
        request, run = await self.read(req)
        store = self.store if request.store is not False else None
        shape = ResponsesShape(run, request, stored=store is not None)
        await respond_chat(resp, run, shape)
        if store is None:
            return
        if resp.stream is None:
            await store.save(stored(shape, request))
        else:
            resp.stream = StoredStream(resp.stream, shape, request, store)  # type: ignore[assignment]


class StoredStream:
    """A stream whose response is stored before its last event goes out, so that the next request finds it."""

    def __init__(self, stream: Any, shape: ResponsesShape, request: ResponseRequest, store: ResponseStore) -> None:
        self.stream = stream
        self.shape = shape
        self.request = request
        self.store = store

    async def __aiter__(self) -> AsyncIterator[bytes]:
        saved = False
        async for data in self.stream:
            if self.shape.ended and not saved:
                saved = True
                await self.store.save(stored(self.shape, self.request))
            yield data

    async def close(self) -> None:
        """Abort what still runs."""
        await self.stream.close()


def stored(shape: ResponsesShape, request: ResponseRequest) -> Stored:
    """A finished response as it is stored."""
    items = encode([with_id(item) for item in request.items])
    return Stored(shape.response.id, request.previous, items, encode(shape.response))


def with_id(item: Item) -> Item:
    """An input item as `input_items` lists it."""
    kind = item.get("type") or "message"
    listed = {"id": random_id("msg_" if kind == "message" else "item_"), "status": "completed", **item, "type": kind}
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        listed["content"] = [{"type": part, "text": item["content"]}]
    return listed


class ResponseTokens(ResponsesEndpoint):
    """POST /v1/responses/input_tokens, /responses/input_tokens."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """The number of tokens of a request's prompt."""
        _, run = await self.read(req)
        resp.data = encode({"object": "response.input_tokens", "input_tokens": run.n_prompt})


class StoredEndpoint:
    """What the endpoints of one stored response have in common."""

    def __init__(self, store: ResponseStore | None) -> None:
        self.store = store

    async def found(self, id: str) -> Stored:
        """The stored response; raises 404."""
        stored = await self.opened().load(id)
        if stored is None:
            raise not_found(id)
        return stored

    def opened(self) -> ResponseStore:
        """The store; raises 501 where there is none."""
        if self.store is None:
            raise unsupported(NO_STORE)
        return self.store


class StoredResponse(StoredEndpoint):
    """/v1/responses/{id}."""

    async def on_get(self, req: Request, resp: Response, id: str) -> None:
        """The response."""
        if req.get_param_as_bool("stream"):
            raise invalid("'stream' is not supported: a stored response comes whole")
        resp.data = (await self.found(id)).response

    async def on_delete(self, req: Request, resp: Response, id: str) -> None:
        """Forget it."""
        if not await self.opened().delete(id):
            raise not_found(id)
        resp.data = encode({"id": id, "object": "response", "deleted": True})


class InputItems(StoredEndpoint):
    """GET /v1/responses/{id}/input_items: what came in by that response's own request."""

    async def on_get(self, req: Request, resp: Response, id: str) -> None:
        """One page of items, the newest first unless `order=asc`."""
        limit = req.get_param_as_int("limit", min_value=1, max_value=MAX_PAGE) or PAGE
        order = req.get_param("order") or "desc"
        if order not in ("asc", "desc"):
            raise invalid("Field 'order': must be 'asc' or 'desc'")
        items: list[Item] = msgspec.json.decode((await self.found(id)).items)
        resp.data = encode(page(items if order == "asc" else items[::-1], limit, req.get_param("after")))


def page(items: list[Item], limit: int, after: str | None) -> dict[str, Any]:
    """At most `limit` items behind the one with the id `after`."""
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise invalid(f"Field 'after': no item has the id '{after:.100}'")
        items = items[ids.index(after) + 1 :]
    shown = items[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(items) > limit,
    }


def not_found(id: str) -> ApiError:
    """404 for a response that was never stored, was deleted or was dropped."""
    return ApiError(404, f"Response with id '{id:.100}' not found.")
