"""What a worker keeps for the chat APIs of its model: templates, the guard of texts, the command line's choices."""

from pathlib import Path

from msgspec import Struct

from api.chat_errors import ChatError
from api.chat_messages import Media
from api.chat_prompt import ChatDefaults
from api.safe_text import TextGuard
from api.template import ChatTemplate, ChatTemplates, Tokens, resolve
from engine.vocab import Vocab
from ipc.options import ConfigError
from ipc.sections import ChatSection


class ChatSetup(Struct, frozen=True):
    """The first three arguments of `build_chat_prompt`, besides the request."""

    templates: ChatTemplates
    guard: TextGuard
    defaults: ChatDefaults


def load_chat(vocab: Vocab, section: ChatSection, media: Media | None = None) -> ChatSetup:
    """Read the model's templates, or the configured one; raises `ConfigError` or `ChatError` if that is unusable."""
    templates = ChatTemplates.of(
        vocab.chat_template(),
        vocab.chat_template("tool_use"),
        override=chosen_template(section),
        jinja=section.jinja,
        tokens=marks_of(vocab),
    )
    defaults = ChatDefaults(
        kwargs=section.template_kwargs,
        reasoning={"on": True, "off": False}.get(section.reasoning),
        reasoning_effort=section.reasoning_effort,
        preserve_reasoning=section.reasoning_preserve,
        prefill=section.prefill_assistant,
        media=media or Media(),
        plain_content=not section.parse_special_content,
    )
    return ChatSetup(templates, TextGuard(vocab), defaults)


def chosen_template(section: ChatSection) -> str | None:
    """The template of `--chat-template` or `--chat-template-file`."""
    if section.template is not None or section.template_file is None:
        return section.template
    try:
        return Path(section.template_file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat.template_file: cannot read {section.template_file}: {error}") from error


def check_template(section: ChatSection) -> None:
    """Raise `ConfigError` for a configured template that no worker could use."""
    chosen = chosen_template(section)
    if chosen:
        try:
            ChatTemplate(resolve(chosen, section.jinja))
        except ChatError as error:
            name = "chat.template_file" if section.template is None else "chat.template"
            raise ConfigError(f"{name}: {error.message}") from None


def marks_of(vocab: Vocab) -> Tokens:
    """What the vocabulary puts around a text."""
    return Tokens(
        bos="" if vocab.bos is None else vocab.text(vocab.bos),
        eos="" if vocab.eos is None else vocab.text(vocab.eos),
        add_bos=vocab.add_bos,
        add_eos=vocab.add_eos,
    )
