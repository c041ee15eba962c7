"""docs/zeromq.md says what messages.py and slab.py do, and its examples run."""

import json
import re
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest

from ipc import messages as m
from ipc import slab
from tests.fake_engine import FakeEngine

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "zeromq.md").read_text()
KINDS = [kind for kind in vars(m).values() if isinstance(kind, type) and issubclass(kind, m.Message)][1:]


def heading(kind: Any) -> str:
    """Title of a message's section: its tag, or the name of a part."""
    tag = kind.__struct_config__.tag
    return f"### `{tag}`" if tag else f"### {kind.__name__}"


def rows(kind: Any) -> list[str]:
    """Beginnings of the rows of a message's table: position, name, type, default."""
    first = 1 if kind.__struct_config__.tag else 0  # a tagged array begins with its tag
    fields = msgspec.structs.fields(kind)
    return [f"| {i} | `{one.name}` | {shape(one.type)} | {default(one)} |" for i, one in enumerate(fields, first)]


def shape(kind: Any) -> str:
    """A type in the page's words."""
    names: dict[Any, str] = {int: "int", float: "float", str: "str", bytes: "bin", bool: "bool", types.NoneType: "nil"}
    if kind in names:
        return names[kind]
    origin, args = get_origin(kind), get_args(kind)
    if kind == m.Result:
        return "result"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(shape, args))
    if origin is list:
        return f"[{shape(args[0])}]"
    if origin is tuple:
        return f"({', '.join(map(shape, args))})"
    if origin is dict:
        return f"map of {shape(args[0])} to {shape(args[1])}"
    name: str = kind.__name__
    return name


def default(one: Any) -> str:
    """A field's default as the wire has it; required fields have none."""
    if one.required:
        return ""
    value = one.default_factory() if one.default is msgspec.NODEFAULT else one.default
    return "all 0" if isinstance(value, m.Timings) else f"`{notation(value)}`"


def notation(value: Any) -> str:
    """A msgpack value as the page writes it: JSON, with h'…' for bytes."""
    if isinstance(value, bytes):
        return f"h'{value.hex()}'"
    if isinstance(value, list):
        return f"[{', '.join(map(notation, value))}]"
    return json.dumps(value)


def section(title: str) -> str:
    """Text below a heading, up to the next one."""
    _, found, rest = PAGE.partition(f"\n{title}\n")
    assert found, f"docs/zeromq.md has no {title!r}"
    return re.split(r"\n#+ ", rest)[0]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_is_described_in_its_place(kind: Any) -> None:
    table = [line for line in section(heading(kind)).splitlines() if re.match(r"\| \d", line)]
    expected = rows(kind)
    assert [line[: len(row)] for line, row in zip(table, expected, strict=True)] == expected
    for line in table:
        assert len(line.split("|")[5].strip()) > 2, f"no description: {line}"


def test_no_message_is_described_that_does_not_exist() -> None:
    described = set(re.findall(r"\n(### .*)\n", PAGE.partition("## Messages")[2].partition("\n## The slab")[0]))
    assert described == {heading(kind) for kind in KINDS}


@pytest.mark.parametrize("arrow", ["→", "←"])
def test_the_example_exchange_is_what_goes_over_the_wire(arrow: str) -> None:
    decode = m.decode_to_engine if arrow == "→" else m.decode_to_client
    examples = re.findall(rf"\n{arrow} (.*)\n((?:  [0-9a-f ]+\n)+)", PAGE)
    assert len(examples) >= 3
    for text, dump in examples:
        frame = bytes.fromhex(dump)
        assert notation(msgspec.msgpack.decode(frame)) == text
        assert m.encode(decode(frame)) == frame


def test_the_python_example_runs(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    with FakeEngine(tmp_path) as engine:
        command = [sys.executable, "-c", code, engine.address]
        run = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("w0 w1 ") and "limit" in run.stdout


def test_the_slab_is_described_as_it_is(tmp_path: Path) -> None:
    table = re.findall(r"\| (\d+) \| (\w+) \| `(\w+)` \|", section("## The slab"))
    assert [int(offset) for offset, _, _ in table] == list(range(0, 8 * len(table), 8))
    index = {name: int(offset) // 8 for offset, _, name in table}
    assert (index["state"], index["beat"], index["steps"]) == (slab.STATE, slab.BEAT, slab.STEPS)
    assert (index["load_progress"], index["active"]) == (slab.LOAD_PROGRESS, slab.ACTIVE)
    owner = slab.Slab.create(str(tmp_path / "x.slab"), 5, 100)
    words = msgspec.json.decode(json.dumps(memoryview(Path(owner.path).read_bytes())[:128].cast("Q").tolist()))
    assert (words[index["pid"]], words[index["n_rows"]], words[index["row_floats"]]) == (owner.pid, 5, 100)
    assert (words[index["rows_at"]], words[index["stride"]]) == (192, 448)
    owner.close()
