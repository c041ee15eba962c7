"""Reading chat completions: a stream's chunks as the message that they add up to, checked on the way."""

from typing import Any

FINISHED = ("stop", "length", "tool_calls")


def joined(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The choice that the chunks of one answer add up to, in the whole answer's form, without ids of calls.

    Fails for chunks that break the rules of OpenAI's streams.
    """
    mine = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    assert mine[0]["delta"]["role"] == "assistant"
    assert all(choice["finish_reason"] is None for choice in mine[:-1])
    assert mine[-1]["finish_reason"] in FINISHED
    assert mine[-1]["delta"] == {}
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for choice in mine[1:]:
        add_delta(message, choice["delta"])
    return {"finish_reason": mine[-1]["finish_reason"], "index": index, "message": without_ids(message)}


def add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Append a delta to a message."""
    assert set(delta) <= {"content", "reasoning_content", "tool_calls"}
    for name in ("content", "reasoning_content"):
        if name in delta:
            assert delta[name], "an empty piece"
            message[name] = message.get(name, "") + delta[name]
    for piece in delta.get("tool_calls", ()):
        add_call(message.setdefault("tool_calls", []), piece)


def add_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    """Append a piece of a call: the first one has id, type and name, the others arguments only."""
    index = piece.pop("index")
    if index == len(calls):
        assert set(piece) == {"id", "type", "function"}
        assert len(piece["id"]) >= 9
        assert piece["function"]["name"]
        assert piece["function"]["arguments"] == ""
        assert piece["id"] not in [call["id"] for call in calls]
        calls.append(piece)
        return
    assert index == len(calls) - 1, "a piece of a call that is not the last"
    assert set(piece) == {"function"}
    assert set(piece["function"]) == {"arguments"}
    calls[index]["function"]["arguments"] += piece["function"]["arguments"]


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have no ids, for these are random."""
    if "tool_calls" not in message:
        return message
    calls = [{"type": call["type"], "function": call["function"]} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def call_of(name: str, arguments: str) -> dict[str, Any]:
    """A call without its id."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}
