"""GET /models, /v1/models and /api/tags: the one model of this server; `spec/endpoints.md` §3."""

import time
from typing import Any

from falcon.asgi import Request, Response

from api.errors import encode
from api.service import Service


class Models:
    """The model in OpenAI's and in Ollama's form."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def on_get(self, req: Request, resp: Response) -> None:
        """One entry each."""
        resp.data = encode({"models": [self.ollama()], "object": "list", "data": [self.openai()]})

    def ollama(self) -> dict[str, Any]:
        """The entry of `models`."""
        name = self.service.name
        return {
            "name": name,
            "model": name,
            "modified_at": "",
            "size": "",
            "digest": "",
            "type": "model",
            "description": "",
            "tags": [""],
            "capabilities": ["completion"],
            "parameters": "",
            "details": {
                "parent_model": "",
                "format": "gguf",
                "family": "",
                "families": [""],
                "parameter_size": "",
                "quantization_level": "",
            },
        }

    def openai(self) -> dict[str, Any]:
        """The entry of `data`."""
        model = self.service.config.model
        return {
            "id": self.service.name,
            "aliases": list(model.alias) or [self.service.name],
            "tags": list(model.tags),
            "object": "model",
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "created": int(time.time()),
            "owned_by": "llamacpp",
            "meta": self.meta(),
        }

    def meta(self) -> dict[str, Any]:
        """Sizes of the model."""
        info = self.service.info
        model = info.model
        return {
            "vocab_type": model.vocab_type,
            "n_vocab": model.n_vocab,
            "n_ctx": info.n_ctx_slot,
            "n_ctx_train": model.n_ctx_train,
            "n_embd": model.n_embd,
            "n_params": model.n_params,
            "size": model.size,
            "ftype": model.ftype,
        }
