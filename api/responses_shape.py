"""The Responses API's answers, whole and as a stream of events: `spec/chat.md` §8.2-3."""

import time
from collections.abc import Iterable
from typing import Any

from msgspec import Raw

from api.chat_counts import logprobs, reasoning_tokens
from api.chat_events import Answer, ChatBegin, ChatDelta, ChatEvent, ChatFinish, ChatProgress
from api.chat_run import ChatRun, ChatShape
from api.errors import ApiError, log
from api.parse.events import Content, compact
from api.responses_object import (
    Failed,
    InputDetails,
    OutputDetails,
    ResponseObject,
    Usage,
    echoed,
    encode,
)
from api.responses_request import ResponseRequest
from api.responses_writer import ResponseEvent, ResponseWriter
from api.results import progress_shown, timings_shown


class ResponsesShape(ChatShape):
    """The `Shape` of the Responses API."""

    def __init__(self, run: ChatRun, request: ResponseRequest, stored: bool) -> None:
        super().__init__(run)
        self.response = new_response(run, request.body, stored)
        self.writer = ResponseWriter(self.response)
        self.unsent: list[Raw] = []  # log-probabilities of tokens whose text is withheld
        self.ended = False

    # streamed

    def show(self, event: ChatEvent) -> bytes:
        match event:
            case ChatDelta():
                return sent(self.pieces(event))
            case ChatBegin():
                return sent(self.writer.begin())
            case ChatProgress(_, progress):
                return sent([self.writer.progress(progress_shown(progress))])
            case ChatFinish(_, reason, final, answer):
                self.ended = True
                self.response.timings = timings_shown(final.timings)
                return sent(self.finish(reason, answer))

    def pieces(self, delta: ChatDelta) -> list[ResponseEvent]:
        """The events of the parser's news."""
        self.unsent += logprobs(self.run, delta.probs)
        events: list[ResponseEvent] = []
        for news in delta.news:
            events += self.writer.add(news, self.taken() if type(news) is Content else None)
        if events and delta.timings is not None:
            events[-1]["timings"] = timings_shown(delta.timings)
        return events

    def taken(self) -> list[Raw]:
        """The log-probabilities that have not been sent."""
        taken, self.unsent = self.unsent, []
        return taken

    def finish(self, reason: str, answer: Answer) -> Iterable[ResponseEvent]:
        """The last events."""
        usage = usage_of(reasoning_tokens(self.run, answer), answer)
        return self.writer.finish(usage, int(time.time()), cut=reason == "length")

    def error(self, error: ApiError) -> bytes:
        """A failed response, and OpenAI's error event, whose `error` makes clients raise."""
        log.warning("A stream ends with an error: %s", error.message)
        failed = self.writer.fail(Failed(error.type, error.message))
        shown = {"code": error.type, "message": error.message, "param": None, **error.body()}
        return sent([*failed, {**self.writer.event("error"), **shown}])

    # whole

    def body(self, answers: list[Answer]) -> bytes:
        """The same events of all the text at once; the response they build is the body."""
        answer = answers[0]
        assert answer.final is not None
        self.unsent = logprobs(self.run, answer.probs)
        for news in compact(answer.news):
            for _ in self.writer.add(news, self.taken() if type(news) is Content else None):
                pass
        self.response.timings = timings_shown(answer.final.timings)
        for _ in self.finish(answer.reason, answer):
            pass
        return encode(self.response)


def new_response(run: ChatRun, body: dict[str, Any], stored: bool) -> ResponseObject:
    """The response as it is before its first token."""
    sampling = run.params.task.sampling
    return ResponseObject(
        id=run.id.replace("chatcmpl-", "resp_"),
        created_at=run.created,
        model=run.model,
        store=stored,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        **echoed(body),
    )


def usage_of(n_reasoning: int, answer: Answer) -> Usage:
    """The tokens of a finished answer."""
    final = answer.final
    assert final is not None
    generated = final.timings.predicted_n
    return Usage(
        input_tokens=final.n_prompt,
        output_tokens=generated,
        total_tokens=final.n_prompt + generated,
        input_tokens_details=InputDetails(final.timings.cache_n),
        output_tokens_details=OutputDetails(n_reasoning),
    )


def sent(events: Iterable[ResponseEvent]) -> bytes:
    """Events as they go out."""
    return b"".join([b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event)) for event in events])
