"""Random requests of every kind from many clients at once; each checks what it gets and leaves when it likes."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from bench.load import WORDS

REQUEST_SECONDS = 300.0  # after which a request counts as lost
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
}
TOPICS = 6  # long beginnings that requests share


class Fault(Exception):
    """An answer that is not what it should be."""


@dataclass(slots=True)
class Tally:
    """What was sent and how it ended, by kind of request."""

    sent: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)  # the client went away, as it meant to
    faults: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Requests that were sent and neither ended nor left nor failed in a way that was told."""
        return self.sent.total() - self.ended.total() - self.left.total() - len(self.faults)


class Left(Exception):
    """The client went away on purpose."""


class Client:
    """Sends one request after the other until `until`, each of a random kind."""

    def __init__(self, http: httpx.AsyncClient, name: str, n_slots: int, tally: Tally) -> None:
        self.http = http
        self.dice = random.Random(name)
        self.name = name
        self.n_slots = n_slots
        self.tally = tally
        self.number = 0

    async def run(self, until: float) -> None:
        """Until the moment `until` on the monotonic clock."""
        while time.monotonic() < until:
            (kind,) = self.dice.choices(list(KINDS), [weight for weight, _ in KINDS.values()])
            await self.one(kind)

    async def one(self, kind: str) -> None:
        """One request of a kind, and the entry for how it ended."""
        self.number += 1
        self.tally.sent[kind] += 1
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await KINDS[kind][1](self)
            self.tally.ended[kind] += 1
        except Left:
            self.tally.left[kind] += 1
        except (Fault, httpx.HTTPError, TimeoutError, json.JSONDecodeError, KeyError, IndexError) as fault:
            self.tally.faults.append(f"{kind}: {type(fault).__name__}: {fault}"[:500])

    # ------------------------------------------------ what requests are made of

    def words(self, least: int, most: int) -> str:
        """Text that no other request has."""
        return f"{self.name} {self.number} " + " ".join(
            self.dice.choices(WORDS.split(), k=self.dice.randint(least, most))
        )

    def native(self, **more: Any) -> dict[str, Any]:
        """The body of a native request with a random prompt, limit and sampling."""
        topic = self.dice.randrange(2 * TOPICS)
        shared = " ".join(random.Random(topic).choices(WORDS.split(), k=250)) if topic < TOPICS else ""
        body = {
            "prompt": shared + self.words(2, 40),
            "n_predict": self.dice.randint(0, 48),
            "temperature": self.dice.choice([0, 0.8, 1.5]),
            "cache_prompt": self.dice.random() < 0.9,
            "ignore_eos": True,
        }
        if self.dice.random() < 0.2:
            body["priority"] = self.dice.randint(-2, 2)
        return body | more

    async def post(self, path: str, body: dict[str, Any], expected: int = 200) -> Any:
        """The decoded answer, which must have the expected status."""
        answer = await self.http.post(path, json=body)
        if answer.status_code != expected:
            raise Fault(f"{answer.status_code} instead of {expected}: {answer.text[:300]}")
        return answer.json()

    async def events(self, path: str, body: dict[str, Any], leave_after: int | None = None) -> list[Any]:
        """The decoded events of a stream; `leave_after` so many the client goes away."""
        found: list[Any] = []
        async with self.http.stream("POST", path, json={**body, "stream": True}) as answer:
            if answer.status_code != 200:
                raise Fault(f"{answer.status_code}: {(await answer.aread())[:300]!r}")
            async for line in answer.aiter_lines():
                if leave_after is not None and len(found) >= leave_after:
                    raise Left
                if line.startswith("data: "):
                    found.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
        return found


async def whole(client: Client) -> None:
    body = client.native()
    answer = await client.post("/completion", body)
    check_final(answer, body)


async def stream(client: Client) -> None:
    body = client.native(n_probs=client.dice.choice([0, 0, 3]), return_progress=client.dice.random() < 0.3)
    *partials, final = await client.events("/completion", body)
    if any(one["stop"] for one in partials):
        raise Fault("two last events")
    n = sum(len(one["tokens"]) for one in partials)
    if n != final["tokens_predicted"]:
        raise Fault(f"{n} tokens sent, but {final['tokens_predicted']} generated")
    check_final(final, body)


def check_final(final: dict[str, Any], body: dict[str, Any]) -> None:
    """All tokens that were asked for; a full memory or context may end a text early, and says so."""
    if not final.get("stop"):
        raise Fault(f"no end: {final}")
    if final["tokens_predicted"] != body["n_predict"] and not final["truncated"]:
        raise Fault(f"{final['tokens_predicted']} tokens instead of {body['n_predict']}, not truncated")


async def openai(client: Client) -> None:
    body: dict[str, Any] = {
        "prompt": client.words(2, 40),
        "max_tokens": client.dice.randint(1, 16),
        "n": client.dice.randint(1, 3),
    }
    *chunks, done = await client.events("/v1/completions", body)
    ends = Counter(one["index"] for chunk in chunks for one in chunk["choices"] if one["finish_reason"])
    if done != "[DONE]" or ends != Counter(range(body["n"])):
        raise Fault(f"ends of choices: {ends}, last event {done!r}")


async def chat(client: Client) -> None:
    messages = [{"role": "user", "content": client.words(2, 40)}]
    answer = await client.post("/v1/chat/completions", {"messages": messages, "max_tokens": client.dice.randint(1, 24)})
    if answer["choices"][0]["finish_reason"] not in ("stop", "length"):
        raise Fault(f"ended with {answer['choices'][0]['finish_reason']}")


async def marked(client: Client) -> None:
    """Only this request's grammar can have made this text."""
    mark = f"{client.name}-{client.number} \U0001f600 {client.dice.randrange(10**9)}"
    body = client.native(grammar=f'root ::= "{mark}"', ignore_eos=False, n_predict=200)
    if client.dice.random() < 0.5:
        text = "".join(one["content"] for one in await client.events("/completion", body))
    else:
        text = (await client.post("/completion", body))["content"]
    if text != mark:
        raise Fault(f"{text!r} instead of {mark!r}")


async def schema(client: Client) -> None:
    body = client.native(json_schema=SCHEMA, ignore_eos=False, n_predict=100)
    answer = await client.post("/completion", body)
    if answer["stop_type"] == "eos" and set(json.loads(answer["content"])) != set(SCHEMA["required"]):
        raise Fault(f"not by the schema: {answer['content']!r}")


async def refused(client: Client) -> None:
    """A request that must get its 400."""
    bad: dict[str, Any] = client.dice.choice(
        [{"grammar": "root ::= ("}, {"json_schema": {"type": "nope"}}, {"prompt": "hello " * 20_000}]
    )
    answer = await client.post("/completion", client.native(**bad, stream=client.dice.random() < 0.5), expected=400)
    if not answer["error"]["message"]:
        raise Fault("an error without a message")


async def leaves_stream(client: Client) -> None:
    body = client.native(n_predict=client.dice.randint(20, 200))
    await client.events("/completion", body, leave_after=client.dice.randint(0, 15))


async def leaves_whole(client: Client) -> None:
    body = client.native(n_predict=400, n_cmpl=client.dice.randint(1, 2))
    try:
        async with asyncio.timeout(client.dice.expovariate(1.0)):
            await client.post("/completion", body)
    except TimeoutError:
        raise Left from None


async def slot_action(client: Client) -> None:
    """Save and restore, or erase, a slot that others use meanwhile."""
    slot, name = client.dice.randrange(client.n_slots), f"soak-{client.dice.randrange(4)}.bin"
    if client.dice.random() < 0.3:
        await client.post(f"/slots/{slot}?action=erase", {})
        return
    await client.post(f"/slots/{slot}?action=save", {"filename": name})
    await client.post(f"/slots/{client.dice.randrange(client.n_slots)}?action=restore", {"filename": name})


async def watch(client: Client) -> None:
    answer = await client.http.get(client.dice.choice(["/health", "/slots", "/metrics", "/props", "/v1/models"]))
    if answer.status_code != 200:
        raise Fault(f"{answer.status_code}: {answer.text[:200]}")


Kind = tuple[float, Callable[[Client], Awaitable[None]]]
KINDS: dict[str, Kind] = {  # weight, and what to do
    "whole": (3, whole),
    "stream": (5, stream),
    "openai": (2, openai),
    "chat": (2, chat),
    "marked": (3, marked),
    "schema": (1, schema),
    "refused": (1, refused),
    "leaves a stream": (3, leaves_stream),
    "leaves before the answer": (2, leaves_whole),
    "slot action": (1, slot_action),
    "watch": (1, watch),
}
