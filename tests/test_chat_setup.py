"""What a worker makes of its model's and its configuration's chat templates."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from api.chat_model import ChatModel
from api.chat_setup import check_template
from api.message_starts import message_starts
from ipc.config import ConfigError
from ipc.sections import ChatSection
from tests.api_client import CONFIG, Api, run
from tests.chat_vocab import ASKED, ChatVocab

BROKEN = "{{ messages"
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    "section",
    [
        ChatSection(template=BROKEN),
        ChatSection(template="{% for %}"),
        ChatSection(template_file="/nonexistent/template"),
        ChatSection(template="{{ messages }}", jinja=False),
    ],
    ids=str,
)
def test_a_configured_template_that_is_unusable_ends_the_start(section: ChatSection) -> None:
    with pytest.raises(ConfigError, match="template"):
        check_template(section)


@pytest.mark.parametrize("section", [ChatSection(), ChatSection(template="chatml"), ChatSection(template="a {{ b }}")])
def test_usable_templates_are_none_of_the_checks_business(section: ChatSection) -> None:
    check_template(section)


def test_chatml_stands_in_for_a_broken_template_of_the_model() -> None:
    model = ChatModel(ChatVocab(BROKEN), ChatSection())
    assert "<|im_start|>" in model.setup.templates.default.source
    with pytest.raises(Exception, match="template"):
        ChatModel(ChatVocab(), ChatSection(template=BROKEN))


def test_without_a_usable_template_the_other_apis_go_on(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        assert (await api.json("/completion", {"prompt": "a", "n_predict": 1}))["content"] == "w0 "
        status, _, message = await api.error(CHAT, {"messages": ASKED})
        assert (status, "template" in message) == (500, True)

    run(test, tmp_path, config=replace(CONFIG, chat=ChatSection(template=BROKEN)), vocab=ChatVocab())


def test_user_messages_are_found_in_the_prompt() -> None:
    vocab = ChatVocab()
    lengths = ChatModel(vocab, ChatSection()).lengths
    turns = [
        {"role": "system", "content": "one"},
        {"role": "user", "content": "  höne "},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "text", "text": "two"}]},
        {"role": "user", "content": "not in the prompt"},
        {"role": "user", "content": ""},
    ]
    prompt = "<s>one|höne|two|two|end"
    tokens = vocab.encode(prompt)
    starts = message_starts(prompt, tokens, turns, lengths)
    assert [vocab.decode(tokens[start:]).decode() for start in starts] == ["höne|two|two|end", "two|end"]
    assert message_starts("", vocab.encode(""), turns, lengths) == []
