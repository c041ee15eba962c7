"""POST /completion, /completions and /v1/completions: `spec/endpoints.md` §4."""

from typing import Any

from falcon.asgi import Request, Response

from api.body import read_object
from api.generate import Generation
from api.native import Native
from api.params import Params
from api.prompts import Tokens, is_id, tokenize_prompts
from api.service import Service
from api.stream import Shape, respond
from api.text import Text
from ipc.messages import Task


class Completions:
    """Native completions."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def on_post(self, req: Request, resp: Response) -> None:
        """Read the request and generate."""
        body = await read_object(req, self.service.config.http.max_body_mib)
        params = self.service.fields.read(body)
        prompts = await tokenize_prompts(self.service.vocab, body.get("prompt"))
        tasks = [task for tokens in prompts for task in params.tasks(tokens)]
        await answer(self.service, resp, params, tasks, self.shape(body, params, tasks, prompts))

    def shape(self, body: dict[str, Any], params: Params, tasks: list[Task], prompts: list[Tokens]) -> Shape:
        """How the answer looks."""
        return Native(self.service, params, tasks, self.service.alias(body.get("model")))


class TextCompletions(Completions):
    """OpenAI's completions."""

    def shape(self, body: dict[str, Any], params: Params, tasks: list[Task], prompts: list[Tokens]) -> Shape:
        echoes = self.echoes(body["prompt"], prompts, params.n) if params.echo else None
        return Text(self.service, params, tasks, self.service.alias(body.get("model")), echoes)

    def echoes(self, prompt: Any, prompts: list[Tokens], n: int) -> list[str]:
        """The text of each task's prompt: as it came, or that of its tokens."""
        several = isinstance(prompt, list) and not any(is_id(item) for item in prompt)
        given = prompt if several else [prompt]
        texts = [self.echo(item, tokens) for item, tokens in zip(given, prompts, strict=True)]
        return [text for text in texts for _ in range(n)]

    def echo(self, prompt: Any, tokens: Tokens) -> str:
        """The text of one prompt."""
        if isinstance(prompt, str):
            return prompt
        raw: bytes = self.service.vocab.decode(tokens.tolist(), special=self.service.config.engine.special)
        return raw.decode("utf-8", "replace")


async def answer(service: Service, resp: Response, params: Params, tasks: list[Task], shape: Shape) -> None:
    """Generate `tasks` and answer in `shape`."""
    tops = params.task.n_probs if params.prompt_logprobs is None else params.prompt_logprobs
    generation = Generation(service.client, tasks, tops)
    await respond(resp, generation, shape, stream=params.stream, ping=params.ping)
