"""Reading streams of the Responses, Messages and Ollama APIs, and what their events add up to, checked on the way."""

import json
from pathlib import Path
from typing import Any

from ipc.config import Config
from ipc.messages import Task
from tests.api_client import CONFIG, Api
from tests.api_client import run as run_api
from tests.chat_vocab import ChatVocab, pieces
from tests.fake_engine import Script

Event = dict[str, Any]
PLAIN = "{{ messages[-1]['content'] }}"  # a template without thinking and tools


def run(
    test: Any, folder: Path, text: str = "", config: Config = CONFIG, *, size: int = 3, template: str | None = None
) -> None:
    """Run a test against a model that answers `text` in tokens of `size` characters; "" answers "w0 w1 …"."""
    script = Script(pieces=pieces(text, size) if text else None, step_seconds=0.001)
    run_api(test, folder, script, config, ChatVocab() if template is None else ChatVocab(template))


def task_of(api: Api) -> Task:
    """The last task that the engine got."""
    task = api.engine.got(Task)[-1]
    assert isinstance(task, Task)
    return task


def prompt_of(api: Api) -> bytes:
    """The prompt of the last task; control tokens are spelled out."""
    return ChatVocab().decode(memoryview(task_of(api).tokens).cast("i").tolist())


async def named_events(api: Api, path: str, body: Any) -> list[Event]:
    """The events of a stream."""
    result = await api.post(path, {**body, "stream": True})
    assert result.headers["content-type"] == "text/event-stream", result.text
    return named(result.text)


def named(text: str) -> list[Event]:
    """The data of all events, each of which is named after its type."""
    found = []
    for block in filter(None, text.split("\n\n")):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def lines(api: Api, path: str, body: Any) -> list[Event]:
    """The objects of one of Ollama's streams."""
    result = await api.post(path, body)
    assert result.headers["content-type"] == "application/x-ndjson", result.text
    assert result.text.endswith("\n")
    return [json.loads(line) for line in result.text[:-1].split("\n")]


def response_of(events: list[Event]) -> Event:
    """The response that the events of a stream of the Responses API add up to."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"]["output"] == []
    items: list[Event] = []
    for event in events[2:-1]:
        add_response_event(items, event)
    last = events[-1]["response"]
    assert items == last["output"]
    assert {"id": last["id"], "created_at": last["created_at"]}.items() <= events[0]["response"].items()
    return last  # type: ignore[no-any-return]


def add_response_event(items: list[Event], event: Event) -> None:
    """Apply an event about an item, which must be the newest and open."""
    kind = event["type"]
    if kind == "response.output_item.added":
        assert not items or items[-1]["status"] != "in_progress"
        assert event["output_index"] == len(items)
        items.append(event["item"])
        assert items[-1]["status"] == "in_progress"
        return
    item = items[-1]
    assert event["output_index"] == len(items) - 1
    assert item["status"] == "in_progress"
    assert event.get("item_id", item["id"]) == item["id"]
    match kind.removeprefix("response.").split("."):
        case ["output_item", "done"]:
            without = {key: value for key, value in event["item"].items() if key != "status"}
            assert without == {key: value for key, value in item.items() if key != "status"}
            items[-1] = event["item"]
        case ["content_part", "added"]:
            assert event["content_index"] == len(item["content"]) == 0
            item["content"].append(event["part"])
        case ["content_part", "done"]:
            assert event["part"] == item["content"][event["content_index"]]
        case ["function_call_arguments", "delta"]:
            item["arguments"] += event["delta"]
        case ["function_call_arguments", "done"]:
            assert event["arguments"] == item["arguments"]
        case ["output_text" | "reasoning_text", "delta"]:
            part = item["content"][event["content_index"]]
            part["text"] += event["delta"]
            part["logprobs" if "logprobs" in part else "_"] = part.get("logprobs", []) + event.get("logprobs", [])
            part.pop("_", None)
        case ["output_text" | "reasoning_text", "done"]:
            assert event["text"] == item["content"][event["content_index"]]["text"]
        case _:
            raise AssertionError(f"an unexpected event: {event}")


def message_of(events: list[Event]) -> Event:
    """The message that the events of a stream of the Messages API add up to."""
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    message: Event = events[0]["message"]
    assert message["content"] == []
    opened: Event | None = None
    for event in events[1:-2]:
        opened = add_message_event(message["content"], opened, event)
    assert opened is None
    for block in message["content"]:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("json"))
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


def add_message_event(blocks: list[Event], opened: Event | None, event: Event) -> Event | None:
    """Apply an event about a block, which must be the newest; returns the open block."""
    match event["type"]:
        case "ping":
            return opened
        case "content_block_start":
            assert opened is None
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
            return blocks[-1]
        case "content_block_stop":
            assert opened is blocks[event["index"]]
            return None
    assert event["type"] == "content_block_delta"
    assert opened is blocks[event["index"]]
    match event["delta"]:
        case {"type": "thinking_delta", "thinking": text}:
            opened["thinking"] += text
        case {"type": "signature_delta", "signature": text}:
            opened["signature"] += text
        case {"type": "text_delta", "text": text}:
            opened["text"] += text
        case {"type": "input_json_delta", "partial_json": text}:
            opened["json"] = opened.get("json", "") + text
        case delta:
            raise AssertionError(f"an unexpected delta: {delta}")
    return opened


def chat_of(found: list[Event]) -> Event:
    """The last object of a stream of /api/chat, with the whole message in it."""
    message: Event = {"role": "assistant", "content": ""}
    assert [one["done"] for one in found] == [False] * (len(found) - 1) + [True]
    for one in found:
        assert one["message"]["role"] == "assistant"
        assert "thinking" not in one["message"] or not message["content"], "thinking after text"
        for key in ("content", "thinking", "tool_calls"):
            if one["message"].get(key):
                message[key] = message[key] + one["message"][key] if key in message else one["message"][key]
    return {**found[-1], "message": message}
