import ctypes
from itertools import product
from pathlib import Path

import pytest

from api.builtin_templates import NAMES, builtin, detect
from api.chat_errors import ChatError
from api.template import ChatTemplate, ChatTemplates

SYSTEM = {"role": "system", "content": "  Be brief. "}
USER = {"role": "user", "content": " Hello\nthere "}
ANSWER = {"role": "assistant", "content": " {text} Hi! "}
AGAIN = {"role": "user", "content": "Bye"}
TOOL = {"role": "tool", "content": "42"}
CONVERSATIONS = [
    [SYSTEM, USER],
    [SYSTEM, USER, ANSWER, AGAIN],
    [USER, ANSWER, AGAIN, ANSWER],
    [USER, SYSTEM, AGAIN],
    [ANSWER, USER],
    [USER, ANSWER, TOOL, ANSWER],
    [SYSTEM],
]


class NativeMessage(ctypes.Structure):
    _fields_ = (("role", ctypes.c_char_p), ("content", ctypes.c_char_p))


def native(lib: ctypes.CDLL, name: str, turns: list[dict[str, str]], asking: bool) -> str:
    """What libllama makes of a conversation."""
    messages = (NativeMessage * len(turns))(*[(turn["role"].encode(), turn["content"].encode()) for turn in turns])
    buffer = ctypes.create_string_buffer(4096)
    length = lib.llama_chat_apply_template(name.encode(), messages, len(turns), asking, buffer, len(buffer))
    return buffer.raw[:length].decode()


@pytest.fixture(scope="module")
def llama(lib: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(lib / "libllama.so"))
    kinds = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_bool, ctypes.c_char_p, ctypes.c_int32)
    library.llama_chat_apply_template.argtypes = kinds
    return library


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"dots1"}))
def test_named_template_renders_as_libllama_does(llama: ctypes.CDLL, name: str) -> None:
    template = ChatTemplate(builtin(name) or "")
    for turns, asking in product(CONVERSATIONS, (True, False)):
        assert template.render(turns, add_generation_prompt=asking) == native(llama, name, turns, asking)


def test_unknown_name_is_no_template() -> None:
    assert builtin("no-such-template") is None


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{{ '<|im_start|>' }}", "chatml"),
        ("<|im_start|><|im_sep|>", "phi4"),
        ("[INST]<<SYS>>", "llama2-sys"),
        ("<|start_header_id|><|end_header_id|>", "llama3"),
        ("<start_of_turn>", "gemma"),
        ("<｜User｜><｜Assistant｜><｜end▁of▁sentence｜>", "deepseek3"),  # noqa: RUF001
        ("nothing of the kind", None),
    ],
)
def test_known_templates_are_recognised(source: str, name: str | None) -> None:
    assert detect(source) == name


def test_name_stands_for_its_template() -> None:
    chosen = ChatTemplates.of("{{ 'the model' }}", override="chatml")
    assert chosen.default.source == builtin("chatml")


def test_without_jinja_the_model_template_is_only_recognised() -> None:
    assert ChatTemplates.of("{{ '<start_of_turn>' }}", jinja=False).default.source == builtin("gemma")
    with pytest.raises(ChatError, match="this custom template is not supported, try using --jinja"):
        ChatTemplates.of("{{ messages }}", jinja=False)
