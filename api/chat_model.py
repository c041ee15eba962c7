"""What a worker keeps for the chat APIs of its model, made once: templates, answer formats, control tokens."""

import logging
from typing import Any

import numpy as np
from msgspec.structs import replace

from api.chat_errors import ChatError
from api.chat_prompt import ChatPrompt
from api.chat_setup import ChatSetup, load_chat
from api.parse.format import Format
from api.parse.formats import CONTENT_ONLY, FormatError, find_format, renderer, taught
from api.template import ChatTemplate
from api.tools import control_tokens
from ipc.sections import ChatSection

log = logging.getLogger(__name__)


class ChatModel:
    """Safe to use from several threads: what is found out later than at the start is the same for whoever finds it."""

    def __init__(self, vocab: Any, section: ChatSection) -> None:
        """Takes some 100 ms. Raises `ConfigError` or `ChatError` for a configured template that is unusable."""
        self.vocab = vocab
        self.section = section
        self.setup = usable_setup(vocab, section)
        self.specials = control_tokens(vocab)
        self.lengths = np.array([len(piece) for piece in vocab.pieces(True)], np.int64)  # bytes of each token
        self.formats: dict[str, Format | FormatError] = {}
        for template in filter(None, (self.setup.templates.default, self.setup.templates.tool_use)):
            self.found(template)

    def format(self, prompt: ChatPrompt) -> Format:
        """How the model answers a prompt; raises `ChatError` if that cannot be told and the prompt has tools."""
        if self.section.skip_parsing:
            return CONTENT_ONLY
        found = self.found(prompt.template)
        if isinstance(found, FormatError):
            if prompt.tools and not prompt.tool_format:
                raise ChatError(str(found))
            found = CONTENT_ONLY
        return taught(found, prompt.tool_format)

    def found(self, template: ChatTemplate) -> Format | FormatError:
        """The format of a template, or why there is none."""
        if template.source not in self.formats:
            self.formats[template.source] = self.find(template)
        return self.formats[template.source]

    def find(self, template: ChatTemplate) -> Format | FormatError:
        """As `found`, by some twenty renderings."""
        try:
            typed = not template.capabilities.supports_string_content
            return find_format(template.source, renderer(template, typed))
        except FormatError as error:
            log.warning("Answers are taken as plain text: %s", error)
            return error


def usable_setup(vocab: Any, section: ChatSection) -> ChatSetup:
    """The configured templates, or the model's own; ChatML where those do not compile."""
    try:
        return load_chat(vocab, section)
    except ChatError as error:
        if section.template is not None or section.template_file is not None:
            raise
        log.error("The model's chat template cannot be used, ChatML stands in for it: %s", error.message)
        return load_chat(vocab, replace(section, template="chatml"))
