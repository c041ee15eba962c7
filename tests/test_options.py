import re
import tomllib
import typing
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipc.config import Adapter, Config, SamplingSection
from ipc.messages import Sampling
from ipc.options import BY_KEY, OPTIONS, Mark
from ipc.options.__main__ import PAGES
from ipc.options.option import UNSET
from ipc.options.pages import WIDTH, help_text
from ipc.options.text import (
    boolean,
    csv,
    json_object,
    logit_bias,
    sampler_letters,
    sampler_names,
    scaled_adapters,
    unescape,
)
from ipc.options.toml import toml_value, value_of


def struct_keys() -> set[str]:
    config = Config()
    sections = {
        name: value for name, value in msgspec.structs.asdict(config).items() if isinstance(value, msgspec.Struct)
    }
    return {f"{section}.{field}" for section, value in sections.items() for field in value.__struct_fields__}


def test_table_and_structs_hold_the_same_keys() -> None:
    assert set(BY_KEY) == struct_keys()


def test_no_flag_and_no_variable_is_listed_twice() -> None:
    flags = Counter(flag for option in OPTIONS for flag in (*option.flags, *option.no_flags))
    variables = Counter(option.env for option in OPTIONS if option.env)
    assert not [name for name, n in (flags + variables).items() if n > 1]


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.key], ids=lambda o: o.flags[0])
def test_row_fits_its_field(option) -> None:
    """Default, constant and special values have the field's type and pass the row's own checks."""
    assert option.help
    first = BY_KEY[option.key]
    values = [first.default, option.const, *option.special.values()]
    for value in values:
        if value is not UNSET:
            assert msgspec.convert(value, option.type, strict=True) == value
    if first.default is not None:
        assert first.from_toml(first.default) == first.default


@pytest.mark.parametrize("option", [o for o in OPTIONS if not o.key], ids=lambda o: o.flags[0])
def test_row_without_key_says_what_becomes_of_it(option) -> None:
    assert option.section
    assert option.mark is Mark.LATER or option.note or option.help


def test_negative_flags_belong_to_booleans() -> None:
    assert all(bool in (o.type, *typing.get_args(o.type)) for o in OPTIONS if o.no_flags)


def test_sampling_defaults_are_those_of_the_wire() -> None:
    wire, section = Sampling(), SamplingSection()
    for name in Sampling.__struct_fields__:
        expected, value = getattr(wire, name), getattr(section, name)
        assert list(value) == expected if isinstance(expected, list) else value == expected


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_generated_page_is_up_to_date(path) -> None:
    assert path.read_text() == PAGES[path](), "run `python -m ipc.options`"


def test_explained_file_holds_every_default() -> None:
    text = next(path for path in PAGES if path.suffix == ".toml").read_text()
    assert all(f"\n#{key.split('.')[1]} = " in text for key in BY_KEY)
    tables = tomllib.loads(re.sub(r"(?m)^#(?=\w+ = )", "", re.sub(r"(?m)^#.*# not set$", "", text)))
    given = {f"{section}.{name}": value for section, table in tables.items() for name, value in table.items()}
    assert {key: BY_KEY[key].from_toml(value) for key, value in given.items()} == {
        key: value_of(Config(), key) for key in given
    }
    assert {key for key in BY_KEY if BY_KEY[key].default is not None} <= set(given)


def test_help_is_narrow_and_names_every_supported_flag() -> None:
    lines = help_text().splitlines()
    assert max(map(len, lines)) <= WIDTH
    words = set(re.split(r"[ ,]+", " ".join(lines)))
    missing = [f for o in OPTIONS if o.key and o.mark is Mark.SUPPORTED for f in o.flags if f not in words]
    assert not missing


@pytest.mark.parametrize("text", ["on", "enabled", "true", "1", "TRUE"])
def test_words_for_yes(text: str) -> None:
    assert boolean(text) is True


@pytest.mark.parametrize("text", ["off", "disabled", "false", "0"])
def test_words_for_no(text: str) -> None:
    assert boolean(text) is False


def test_other_words_are_no_booleans() -> None:
    with pytest.raises(ValueError, match="expected on or off, got 'maybe'"):
        boolean("maybe")


def test_quotes_protect_commas_in_lists() -> None:
    assert csv('a, "b,c" ,,d') == ["a", "b,c", "d"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"a\nb", "a\nb"),
        (r"\t\\\"\'\r", "\t\\\"'\r"),
        (r"\x41\x7a", "Az"),
        (r"\q", r"\q"),
        ("plain", "plain"),
        ("\\", "\\"),
    ],
)
def test_escapes(text: str, expected: str) -> None:
    assert unescape(text) == expected


def test_logit_bias_has_a_sign() -> None:
    assert logit_bias("15043+1.5") == ((15043, 1.5),)
    assert logit_bias("2-inf") == ((2, float("-inf")),)
    with pytest.raises(ValueError, match="expected TOKEN"):
        logit_bias("15043")


@pytest.mark.parametrize(
    "text", ["top_k;top_p;typ_p;temperature", "Top-K;nucleus;typ;temp", "topk;topp;typp;temperature"]
)
def test_samplers_have_many_spellings(text: str) -> None:
    assert sampler_names(text) == ("top_k", "top_p", "typ_p", "temperature")


def test_sampler_letters() -> None:
    assert sampler_letters("edskypmxt") == SamplingSection().samplers
    with pytest.raises(ValueError, match="unknown sampler letter 'q'"):
        sampler_letters("kq")


def test_scaled_adapters_split_at_the_last_colon() -> None:
    assert scaled_adapters("a:b.gguf:0.5,c:2") == (Adapter(path="a:b.gguf", scale=0.5), Adapter(path="c", scale=2.0))
    with pytest.raises(ValueError, match="expected FILE:SCALE"):
        scaled_adapters("a.gguf")


def test_json_must_be_an_object() -> None:
    assert json_object('{"a": 1}') == {"a": 1}
    for text in ("[1]", "{"):
        with pytest.raises(ValueError, match="expected a JSON object"):
            json_object(text)


values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(values)
def test_toml_text_reads_back(value) -> None:
    assert tomllib.loads(f"key = {toml_value(value)}") == {"key": value}
