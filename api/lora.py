"""LoRA adapters over HTTP: list and scale them (`spec/endpoints.md` §8), and load or drop them while serving."""

from typing import Any

from falcon.asgi import Request, Response

from api.body import read_json, read_object
from api.errors import encode, invalid
from api.readers import lora as read_scales
from api.service import Service
from ipc.messages import Control, DropLora, GetLora, LoadLora, LoraReply, LoraState, SetLora

LOAD_SECONDS = 300.0  # that reading an adapter's file may take


class Adapters:
    """What the resources below share."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def ask(self, control: Control, seconds: float = 10.0) -> list[dict[str, Any]]:
        """Send a control request; the adapters afterwards."""
        reply: LoraReply = await self.service.client.call(control, seconds)
        return [shown(adapter) for adapter in reply.adapters]


class LoraAdapters(Adapters):
    """The adapters and their server-wide scales, which hold for requests without a `lora` list."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """One object per adapter."""
        resp.data = encode(await self.ask(GetLora(0)))

    async def on_post(self, req: Request, resp: Response) -> None:
        """Set the scales; an adapter that is not listed gets 0."""
        body = await read_json(req, self.service.config.http.max_body_mib)
        if not isinstance(body, list):
            raise invalid("Request body must be an array")
        await self.ask(SetLora(0, read_scales(body, self.service.vocab)))
        resp.data = encode({"success": True})


class LoadAdapter(Adapters):
    """POST `{"path": FILE, "scale": 1.0}`."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Load the file; the answer lists all adapters, the new one last."""
        body = await read_object(req, self.service.config.http.max_body_mib)
        path, scale = body.get("path"), body.get("scale", 1.0)
        if not isinstance(path, str) or not path:
            raise invalid("Field 'path': must be the path of a GGUF file on the server")
        if isinstance(scale, bool) or not isinstance(scale, int | float):
            raise invalid("Field 'scale': must be a number")
        resp.data = encode(await self.ask(LoadLora(0, path, float(scale)), LOAD_SECONDS))


class OneAdapter(Adapters):
    """DELETE one adapter by its id."""

    async def on_delete(self, req: Request, resp: Response, adapter: str) -> None:
        """Drop it; the answer lists what is left."""
        if not adapter.isdecimal():
            raise invalid(f"Invalid adapter id: {adapter}")
        resp.data = encode(await self.ask(DropLora(0, int(adapter))))


def shown(adapter: LoraState) -> dict[str, Any]:
    """One entry of the list."""
    entry: dict[str, Any] = {
        "id": adapter.id,
        "path": adapter.path,
        "scale": adapter.scale,
        "task_name": adapter.task_name,
        "prompt_prefix": adapter.prompt_prefix,
    }
    if adapter.alora_invocation_tokens:
        entry["alora_invocation_tokens"] = adapter.alora_invocation_tokens
    return entry
