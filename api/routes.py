"""Every path of the server and what answers it: `spec/endpoints.md` §2."""

import os
from typing import Any

from falcon.asgi import App, Request, Response

from api import errors
from api.anthropic import CountTokens, Messages
from api.auth import Auth
from api.chat import ApplyTemplate, ChatCompletions, ChatControl, InputTokens
from api.completions import Completions, TextCompletions
from api.cors import Cors
from api.embeddings import Embeddings, OpenAIEmbeddings
from api.error_forms import ErrorForms
from api.health import Health, Readiness
from api.infill import Infill
from api.lora import LoadAdapter, LoraAdapters, OneAdapter
from api.metrics import Metrics
from api.models import Models
from api.ollama import OllamaChat, OllamaGenerate
from api.ollama_embed import OllamaEmbed, OllamaEmbeddings
from api.ollama_models import Running, Show, Tags, Version
from api.props import Props
from api.rerank import Rerank
from api.response_store import ResponseStore
from api.responses import InputItems, Responses, ResponseTokens, StoredResponse
from api.service import Service
from api.slot_files import SlotFiles
from api.slots import Slots
from api.tokens import Detokenize, Tokenize
from ipc.config import Config

PUBLIC = ("/", "/index.html", "/health", "/v1/health")


def routes(service: Service, store: ResponseStore | None) -> dict[str, Any]:
    """Path to resource."""
    health, models = Health(service), Models(service)
    native, text = Completions(service), TextCompletions(service)
    embeddings, rerank = Embeddings(service), Rerank(service)
    chat, control, counting = ChatCompletions(service), ChatControl(service), InputTokens(service)
    debug = os.environ.get("LLAMA_SERVER_SLOTS_DEBUG", "0") not in ("", "0")
    return {
        "/health": health,
        "/v1/health": health,
        "/metrics": Metrics(service),
        "/props": Props(service),
        "/models": models,
        "/v1/models": models,
        "/slots": Slots(service, debug),
        "/slots/{slot}": SlotFiles(service),
        "/completion": native,
        "/completions": native,
        "/v1/completions": text,
        "/v1/chat/completions": chat,
        "/chat/completions": chat,
        "/v1/chat/completions/control": control,
        "/v1/chat/completions/input_tokens": counting,
        "/chat/completions/input_tokens": counting,
        "/apply-template": ApplyTemplate(service),
        **responses(service, store),
        "/v1/messages": Messages(service),
        "/v1/messages/count_tokens": CountTokens(service),
        **ollama(service),
        "/lora-adapters": LoraAdapters(service),
        "/lora-adapters/load": LoadAdapter(service),
        "/lora-adapters/{adapter}": OneAdapter(service),
        "/infill": Infill(service),
        "/embedding": embeddings,
        "/embeddings": embeddings,
        "/v1/embeddings": OpenAIEmbeddings(service),
        "/rerank": rerank,
        "/reranking": rerank,
        "/v1/rerank": rerank,
        "/v1/reranking": rerank,
        "/tokenize": Tokenize(service),
        "/detokenize": Detokenize(service),
    }


def responses(service: Service, store: ResponseStore | None) -> dict[str, Any]:
    """The Responses API."""
    generating, counting = Responses(service, store), ResponseTokens(service, store)
    return {
        "/v1/responses": generating,
        "/responses": generating,
        "/v1/responses/input_tokens": counting,
        "/responses/input_tokens": counting,
        "/v1/responses/{id}": StoredResponse(store),
        "/v1/responses/{id}/input_items": InputItems(store),
    }


def ollama(service: Service) -> dict[str, Any]:
    """Ollama's API."""
    return {
        "/api/chat": OllamaChat(service),
        "/api/generate": OllamaGenerate(service),
        "/api/tags": Tags(service),
        "/api/ps": Running(service),
        "/api/show": Show(service),
        "/api/version": Version(),
        "/api/embed": OllamaEmbed(service),
        "/api/embeddings": OllamaEmbeddings(service),
    }


def create_app(config: Config, client: Any = None, vocab: Any = None) -> App[Request, Response]:
    """The ASGI application for one configuration; tests give their own engine client and vocabulary."""
    service = Service(config, client, vocab)
    prefix = config.http.api_prefix.rstrip("/")
    public = [prefix + path for path in PUBLIC]
    store = ResponseStore(config.http.responses_db) if config.http.responses_db is not None else None
    forms, auth = ErrorForms(prefix), Auth(config.http.keys(), public)
    middleware: Any = [*filter(None, [store]), service, forms, Cors(config.http), Readiness(service), auth]
    app: App[Request, Response] = App(middleware=middleware)
    app.req_options.strip_url_path_trailing_slash = True
    app.resp_options.default_media_type = errors.JSON
    errors.install(app)
    for path, resource in routes(service, store).items():
        if hasattr(resource, "on_get"):
            resource.on_head = resource.on_get
        app.add_route(prefix + path, resource)
    return app
