"""The incremental parser of a model's answer."""

from api.parse.events import Event, Message
from api.parse.format import Format
from api.parse.layout import Ask
from api.parse.output import Output
from api.parse.scan import Scanner, Steps


class Parser:
    """Turns the text of one answer, in pieces of any size, into events whose sum does not depend on the pieces.

    `prompt` is the generation prompt: what the template wrote of the answer already, such as `<think>`.
    """

    def __init__(self, format: Format, ask: Ask | None = None, prompt: str = "") -> None:
        self.format = format
        self.ask = ask or Ask()
        self._scanner = Scanner()
        self._output = Output(self.ask.tools, format.id_length)
        self._steps: Steps[None] | None = format.read(self._scanner, self._output, self.ask)
        self._advance()
        self._skip(format.prompt_tail(prompt))

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside the thinking."""
        return self._output.thinking

    def feed(self, text: str) -> list[Event]:
        """Take more text; returns what it says."""
        self._scanner.append(text)
        self._advance()
        return self._output.drain()

    def finish(self, cut: bool = False) -> list[Event]:
        """The answer is complete, or was `cut` by a limit; returns what was withheld."""
        self._scanner.ended, self._scanner.cut = True, cut
        self._advance()
        return self._output.drain()

    def _advance(self) -> None:
        if self._steps is None:
            return
        try:
            next(self._steps)
        except StopIteration:
            self._steps = None

    def _skip(self, prompt: str) -> None:
        """Read the part of the answer that stands in the prompt, which is no news to the client."""
        if not prompt:
            return
        self._scanner.append(prompt)
        self._advance()
        start = self.format.thinking.start if self.format.thinking else ""
        bare = prompt.strip() == start.strip()
        if not (bare and self.thinking and not self.ask.apart):
            self._output.forget()


def parse(format: Format, text: str, ask: Ask | None = None, prompt: str = "") -> Message:
    """The message in a whole answer."""
    parser = Parser(format, ask, prompt)
    return Message().add(parser.feed(text)).add(parser.finish())
