"""POST /v1/messages and /v1/messages/count_tokens: `spec/chat.md` §9, `docs/anthropic.md`."""

from collections.abc import Iterable

from falcon.asgi import Request, Response

from api.anthropic_request import read_request
from api.anthropic_writer import MessageEvent, MessageObject, MessageWriter, Usage, encode
from api.body import read_object
from api.chat_events import Answer, ChatBegin, ChatDelta, ChatEvent, ChatFinish, ChatProgress
from api.chat_plan import start_chat
from api.chat_run import ChatRun, ChatShape, respond_chat
from api.error_forms import anthropic_error
from api.errors import ApiError, log
from api.parse.events import compact
from api.results import timings_shown
from api.service import Service
from ipc.messages import Final

REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


class MessagesEndpoint:
    """What both endpoints have in common."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def read(self, req: Request) -> ChatRun:
        """The request as a chat, ready to be submitted."""
        body = await read_object(req, self.service.config.http.max_body_mib)
        request = read_request(body)
        run = await start_chat(self.service, request.chat)
        run.warnings = [*request.warnings, *run.warnings]
        return run


class Messages(MessagesEndpoint):
    """POST /v1/messages."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Generate."""
        run = await self.read(req)
        await respond_chat(resp, run, MessagesShape(run))


class CountTokens(MessagesEndpoint):
    """POST /v1/messages/count_tokens."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """The number of tokens of a request's prompt."""
        resp.data = encode({"input_tokens": (await self.read(req)).n_prompt})


class MessagesShape(ChatShape):
    """The `Shape` of the Messages API."""

    def __init__(self, run: ChatRun) -> None:
        super().__init__(run)
        self.message = MessageObject(run.id, run.model, usage=Usage(input_tokens=run.n_prompt))
        self.writer = MessageWriter(self.message)

    # streamed

    def show(self, event: ChatEvent) -> bytes:
        match event:
            case ChatDelta(_, news):
                return b"".join([sent(self.writer.add(one)) for one in news])
            case ChatBegin():
                return sent([*self.writer.begin(), {"type": "ping"}])
            case ChatProgress():
                return sent([{"type": "ping"}])
            case ChatFinish(_, reason, final):
                return sent(self.finish(reason, final))

    def finish(self, reason: str, final: Final) -> list[MessageEvent]:
        """The last events."""
        events = list(self.writer.finish(REASONS[reason], final.stopping_word or None, usage_of(final)))
        if self.run.params.task.timings_per_token:
            events[-1]["timings"] = timings_shown(final.timings)
        return events

    def error(self, error: ApiError) -> bytes:
        """Anthropic's error event."""
        log.warning("A stream ends with an error: %s", error.message)
        return sent([anthropic_error(error)])

    # whole

    def body(self, answers: list[Answer]) -> bytes:
        """The same events of all the text at once; the message they build is the body."""
        answer = answers[0]
        assert answer.final is not None
        for news in compact(answer.news):
            for _ in self.writer.add(news):
                pass
        self.finish(answer.reason, answer.final)
        return encode(self.message)


def usage_of(final: Final) -> Usage:
    """The tokens of a finished answer."""
    cached = final.timings.cache_n
    return Usage(final.n_prompt - cached, final.timings.predicted_n, cached)


def sent(events: Iterable[MessageEvent]) -> bytes:
    """Events as they go out."""
    return b"".join([b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event)) for event in events])
