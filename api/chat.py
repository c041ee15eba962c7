"""The chat endpoints that OpenAI's clients and llama-server's speak: `spec/endpoints.md` §5-6."""

from falcon.asgi import Request, Response

from api.body import read_object
from api.chat_plan import start_chat
from api.chat_run import ChatRun, respond_chat
from api.chat_stream import OpenAIChat
from api.errors import encode, invalid
from api.service import Service
from ipc.client import Refused
from ipc.messages import EndReasoning


class ChatEndpoint:
    """What the endpoints with a chat request as their body have in common."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def read(self, req: Request) -> ChatRun:
        """The request, ready to be submitted."""
        body = await read_object(req, self.service.config.http.max_body_mib)
        return await start_chat(self.service, body)


class ChatCompletions(ChatEndpoint):
    """POST /v1/chat/completions, /chat/completions."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Generate."""
        run = await self.read(req)
        await respond_chat(resp, run, OpenAIChat(run))


class ApplyTemplate(ChatEndpoint):
    """POST /apply-template."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """The prompt of a chat request."""
        resp.data = encode({"prompt": (await self.read(req)).prompt})


class InputTokens(ChatEndpoint):
    """POST /v1/chat/completions/input_tokens, /chat/completions/input_tokens."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """The number of tokens of a chat request's prompt."""
        n = (await self.read(req)).n_prompt
        resp.data = encode({"object": "response.input_tokens", "input_tokens": n})


class ChatControl(ChatEndpoint):
    """POST /v1/chat/completions/control: whichever worker gets it, the engine finds the completion by its id."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """End the thinking of a completion that was started with `reasoning_control`."""
        body = await read_object(req, self.service.config.http.max_body_mib)
        id = body.get("id")
        if not isinstance(id, str) or not id:
            raise invalid("missing completion id")
        if body.get("action") != "reasoning_end":
            raise invalid("unknown control action")
        try:
            await self.service.client.call(EndReasoning(0, 0, id))
        except Refused as refusal:
            resp.data = encode({"success": False, "message": refusal.error.message})
            return
        resp.data = encode({"success": True})
