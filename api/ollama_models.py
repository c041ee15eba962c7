"""What Ollama's clients ask about models: /api/tags, /api/show, /api/ps, /api/version."""

import hashlib
import os
from datetime import UTC, datetime
from typing import Any

from falcon.asgi import Request, Response

from api.errors import ApiError, encode
from api.infill import check_tokens
from api.models import Models
from api.service import Service

VERSION = "0.12.6"  # of the Ollama whose API this is; clients refuse what they take for too old a server
NEVER = "2318-01-01T00:00:00Z"  # when the model leaves the memory
HIDDEN = ("tokenizer.",)  # metadata that is long and of no use to clients


class OllamaModels:
    """The one model of this server as Ollama describes models."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def entry(self) -> dict[str, Any]:
        """What all lists say."""
        model, name = self.service.info.model, self.service.name
        identity = f"{name} {model.desc} {model.size} {model.n_params}"
        return {
            "name": name,
            "model": name,
            "modified_at": self.modified_at(),
            "size": model.size,
            "digest": hashlib.sha256(identity.encode()).hexdigest(),  # tells models apart; not that of the file
            "details": self.details(),
        }

    def modified_at(self) -> str:
        """When the file was written."""
        try:
            seconds = os.stat(self.service.info.model.path).st_mtime
        except OSError:
            seconds = self.service.started
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")

    def details(self) -> dict[str, Any]:
        """Kind and size of the model."""
        model = self.service.info.model
        return {
            "parent_model": "",
            "format": "gguf",
            "family": model.architecture,
            "families": [model.architecture],
            "parameter_size": size_text(model.n_params),
            "quantization_level": model.ftype,
        }

    def capabilities(self) -> list[str]:
        """What can be asked of the model."""
        info, caps = self.service.info, self.service.chat.setup.templates.default.capabilities
        found = ["completion", "tools"] if info.text else []
        if info.text and caps.supports_thinking:
            found.append("thinking")
        if can_fill(self.service.vocab):
            found.append("insert")
        return [*found, "embedding"] if info.n_embed_tokens is not None else found


class Tags(OllamaModels):
    """GET /api/tags; `object` and `data` are those of /models."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """The list of models."""
        openai = Models(self.service).openai()
        resp.data = encode({"models": [self.entry()], "object": "list", "data": [openai]})


class Running(OllamaModels):
    """GET /api/ps."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """The models in memory."""
        length = self.service.info.n_ctx_slot
        resp.data = encode(
            {"models": [{**self.entry(), "expires_at": NEVER, "size_vram": 0, "context_length": length}]}
        )


class Show(OllamaModels):
    """POST /api/show."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """Everything about the model, whatever name the body has."""
        templates = self.service.chat.setup.templates
        resp.data = encode(
            {
                "modelfile": "",
                "parameters": "",
                "license": self.service.vocab.meta.get("general.license", ""),
                "template": templates.default.source,
                "details": self.details(),
                "model_info": self.model_info(),
                "capabilities": self.capabilities(),
                "modified_at": self.modified_at(),
            }
        )

    def model_info(self) -> dict[str, Any]:
        """The file's metadata, numbers as numbers."""
        model, meta = self.service.info.model, self.service.vocab.meta
        shown = {key: typed(text) for key, text in meta.items() if not key.startswith(HIDDEN)}
        return {
            **shown,
            "general.architecture": model.architecture,
            "general.parameter_count": model.n_params,
            f"{model.architecture}.context_length": model.n_ctx_train,
            f"{model.architecture}.embedding_length": model.n_embd,
        }


class Version:
    """GET /api/version."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """The version of Ollama's API."""
        resp.data = encode({"version": VERSION})


def size_text(n_params: int) -> str:
    """A number of parameters as Ollama writes it: "134.52M"."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if n_params >= size:
            return f"{n_params / size:.4g}{unit}"
    return str(n_params)


def typed(text: str) -> int | float | bool | str:
    """The value that a piece of metadata spells."""
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def can_fill(vocab: Any) -> bool:
    """Whether the model can fill in the middle."""
    try:
        check_tokens(vocab)
    except ApiError:
        return False
    return True
