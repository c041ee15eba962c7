"""Every message survives the wire in both directions, and nothing that is not a message passes."""

import types
import typing
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipc import messages as m

DIRECTIONS = [(kind, m.decode_to_engine) for kind in get_args(m.ToEngine)]
DIRECTIONS += [(kind, m.decode_to_client) for kind in get_args(m.ToClient)]


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as messages use it."""
    simple = {
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False),
        str: st.text(st.characters(exclude_categories=["Cs"])),
        bytes: st.binary(),
        bool: st.booleans(),
        types.NoneType: st.none(),
    }
    if kind in simple:
        return simple[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*map(values, args))
    if origin is list:
        return st.lists(values(args[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(values, args))
    return st.builds(kind, **{one.name: values(one.type) for one in msgspec.structs.fields(kind)})


@pytest.mark.parametrize(("kind", "decode"), DIRECTIONS, ids=lambda one: getattr(one, "__name__", ""))
def test_round_trip(kind: Any, decode: Any) -> None:
    @settings(max_examples=25, deadline=None)
    @given(values(kind))
    def holds(message: Any) -> None:
        assert decode(m.encode(message)) == message

    holds()


def test_tags_differ_within_a_direction() -> None:
    for union in (m.ToEngine, m.ToClient):
        tags = [kind.__struct_config__.tag for kind in get_args(union)]
        assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("kind", [*get_args(m.ToEngine), *get_args(m.ToClient)], ids=lambda kind: kind.__name__)
def test_an_older_peer_is_understood(kind: Any) -> None:
    """Fields with a default may be missing at the end, unknown ones may follow."""
    fields = msgspec.structs.fields(kind)
    n_required = sum(one.required for one in fields)
    decode = m.decode_to_engine if kind in get_args(m.ToEngine) else m.decode_to_client

    @settings(max_examples=3, deadline=None)
    @given(values(kind))
    def holds(message: Any) -> None:
        elements = msgspec.msgpack.decode(m.encode(message))
        short = decode(msgspec.msgpack.encode(elements[: 1 + n_required]))
        for one in fields[:n_required]:
            assert getattr(short, one.name) == getattr(message, one.name)
        assert decode(msgspec.msgpack.encode([*elements, "of a later version"])) == message

    holds()


@pytest.mark.parametrize("union", [m.ToEngine, m.ToClient], ids=["to engine", "to client"])
def test_required_fields_come_first(union: Any) -> None:
    for kind in get_args(union):
        required = [one.required for one in msgspec.structs.fields(kind)]
        assert required == sorted(required, reverse=True), kind


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=64))
def test_garbage_raises_only_decode_errors(garbage: bytes) -> None:
    for decode in (m.decode_to_engine, m.decode_to_client):
        try:
            decode(garbage)
        except msgspec.MsgspecError:
            continue
        assert msgspec.msgpack.decode(garbage)[0] in ("bye", "hello")


def test_every_truncation_is_refused() -> None:
    frame = m.encode(m.Task(1, b"\1\0\0\0", m.Sampling(), stop=["x"]))
    for end in range(len(frame)):
        with pytest.raises(msgspec.MsgspecError):
            m.decode_to_engine(frame[:end])
