"""GET and POST /props: what this server is and what requests get by default; `spec/endpoints.md` §3."""

from typing import Any

from falcon.asgi import Request, Response

from api.errors import encode, unsupported
from api.service import Service

DISABLED = "This server does not support changing global properties. Start it with `--props`"


class Props:
    """Global properties. Asking for them never wakes the engine."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def on_get(self, req: Request, resp: Response) -> None:
        """All properties."""
        resp.data = encode(self.props())

    async def on_post(self, req: Request, resp: Response) -> None:
        """Accepted when enabled; there is nothing to change yet."""
        if not self.service.config.http.props:
            raise unsupported(DISABLED)
        resp.data = encode({"success": True})

    def props(self) -> dict[str, Any]:
        """The JSON object."""
        service, info, http = self.service, self.service.info, self.service.config.http
        schema = service.fields
        settings = schema.settings(schema.defaults, full=False)
        return {
            "default_generation_settings": {"params": settings, "n_ctx": info.n_ctx_slot},
            "total_slots": info.n_slots,
            "model_alias": service.name,
            "model_path": info.model.path,
            "model_ftype": info.model.ftype,
            "modalities": {"vision": False, "audio": False, "video": False},
            "media_marker": "<__media__>",
            "endpoint_slots": http.slots,
            "endpoint_props": http.props,
            "endpoint_metrics": http.metrics,
            "ui": http.ui,
            "ui_settings": http.ui_config,
            **self.template(),
            "bos_token": self.token(service.vocab.bos),
            "eos_token": self.token(service.vocab.eos),
            "build_info": info.build,
            "is_sleeping": False,
            "cors_proxy_enabled": False,
        }

    def template(self) -> dict[str, Any]:
        """The chat template and what it can do."""
        templates = self.service.chat.setup.templates
        shown: dict[str, Any] = {"chat_template": templates.default.source}
        if templates.tool_use is not None:
            shown["chat_template_tool_use"] = templates.tool_use.source
        return {**shown, "chat_template_caps": templates.default.capabilities.to_map()}

    def token(self, token: int | None) -> str:
        """A special token's text, "" when the vocabulary has none."""
        if token is None:
            return ""
        piece: bytes = self.service.vocab.piece(token, special=True)
        return piece.decode("utf-8", "replace")
