"""POST /api/chat and /api/generate as Ollama's clients know them: `docs/ollama.md`."""

from typing import Any

from falcon.asgi import Request, Response

from api.body import read_object
from api.chat_plan import start_chat
from api.chat_run import ChatRun, respond_chat
from api.chat_stream import OpenAIChat
from api.error_forms import openai_error
from api.errors import ApiError, encode, invalid
from api.infill import Infill, Parts, check_tokens
from api.members import Object, boolean_or, text_or
from api.ollama_request import chat_body, completion_body, generate_body, is_openai, messages_of
from api.ollama_shape import NDJSON, OllamaShape, Show, chat_message, generated, now
from api.parse.events import Message
from api.parse.formats import CONTENT_ONLY
from api.parse.stream import Parser
from api.prompts import Tokens, off_loop, tokenize_prompts
from api.service import Service


class OllamaEndpoint:
    """What both endpoints have in common."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def body(self, req: Request) -> dict[str, Any]:
        """The request body."""
        return await read_object(req, self.service.config.http.max_body_mib)

    async def respond(self, resp: Response, run: ChatRun, show: Show) -> None:
        """Generate. Lines of JSON have no comments, so a silent stream stays silent."""
        run.params.ping = None
        await respond_chat(resp, run, OllamaShape(run, show))
        if resp.stream is not None:
            resp.content_type = NDJSON

    def loaded(self, resp: Response, body: Object, show: Show) -> None:
        """The answer to a request that says nothing: the model is there. (It never leaves.)"""
        reason = "unload" if body.get("keep_alive") in (0, "0") else "load"
        shown = {"model": self.service.alias(body.get("model")), "created_at": now(), **show(Message())}
        resp.data = encode({**shown, "done": True, "done_reason": reason})


class OllamaChat(OllamaEndpoint):
    """POST /api/chat; a body of OpenAI's chat completions gets OpenAI's answer."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Generate."""
        body = await self.body(req)
        if is_openai(body):
            req.context.error_form = openai_error
            run = await start_chat(self.service, body)
            await respond_chat(resp, run, OpenAIChat(run))
        elif not messages_of(body):
            self.loaded(resp, body, chat_message)
        else:
            await self.respond(resp, await start_chat(self.service, chat_body(body)), chat_message)


class OllamaGenerate(OllamaEndpoint):
    """POST /api/generate."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Generate."""
        body = await self.body(req)
        prompt, suffix = text_or(body, "prompt", ""), text_or(body, "suffix", "")
        if not prompt and not suffix and not body.get("images"):
            self.loaded(resp, body, generated)
        elif suffix:
            await self.respond(resp, self.plain(body, await self.infill(prompt, suffix)), generated)
        elif boolean_or(body, "raw", False):
            tokens = await tokenize_prompts(self.service.vocab, prompt)
            await self.respond(resp, self.plain(body, tokens[0]), generated)
        else:
            await self.respond(resp, await start_chat(self.service, generate_body(body)), generated)

    async def infill(self, prefix: str, suffix: str) -> Tokens:
        """The prompt that asks for what stands between two texts."""
        check_fill(self.service)
        parts = Parts(prefix, suffix, "", [])
        return await off_loop(parts.size(), Infill(self.service).assemble, parts)

    def plain(self, body: Object, tokens: Tokens) -> ChatRun:
        """A completion without a template, whose answer is all text."""
        service = self.service
        params = service.fields.read(completion_body(body))
        run = ChatRun(service, params, params.tasks(tokens), [Parser(CONTENT_ONLY)], [])
        run.model = service.alias(body.get("model"))
        return run


def check_fill(service: Service) -> None:
    """Raise 400 unless the model can fill in the middle."""
    try:
        check_tokens(service.vocab)
    except ApiError as error:
        raise invalid(f"'suffix' is not supported: {error.message}") from error
