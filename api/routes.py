"""Every path of the server and what answers it: `spec/endpoints.md` §2."""

import os
from typing import Any

from falcon.asgi import App, Request, Response

from api import errors
from api.auth import Auth
from api.chat import ApplyTemplate, ChatCompletions, ChatControl, InputTokens
from api.completions import Completions, TextCompletions
from api.cors import Cors
from api.health import Health, Readiness
from api.infill import Infill
from api.metrics import Metrics
from api.models import Models
from api.props import Props
from api.service import Service
from api.slots import Slots
from api.tokens import Detokenize, Tokenize
from ipc.config import Config

PUBLIC = ("/", "/index.html", "/health", "/v1/health")


def routes(service: Service) -> dict[str, Any]:
    """Path to resource."""
    health, models = Health(service), Models(service)
    native, text = Completions(service), TextCompletions(service)
    chat, control, counting = ChatCompletions(service), ChatControl(service), InputTokens(service)
    debug = os.environ.get("LLAMA_SERVER_SLOTS_DEBUG", "0") not in ("", "0")
    return {
        "/health": health,
        "/v1/health": health,
        "/metrics": Metrics(service),
        "/props": Props(service),
        "/models": models,
        "/v1/models": models,
        "/api/tags": models,
        "/slots": Slots(service, debug),
        "/completion": native,
        "/completions": native,
        "/v1/completions": text,
        "/v1/chat/completions": chat,
        "/chat/completions": chat,
        "/api/chat": chat,
        "/v1/chat/completions/control": control,
        "/v1/chat/completions/input_tokens": counting,
        "/chat/completions/input_tokens": counting,
        "/apply-template": ApplyTemplate(service),
        "/infill": Infill(service),
        "/tokenize": Tokenize(service),
        "/detokenize": Detokenize(service),
    }


def create_app(config: Config, client: Any = None, vocab: Any = None) -> App[Request, Response]:
    """The ASGI application for one configuration; tests give their own engine client and vocabulary."""
    service = Service(config, client, vocab)
    prefix = config.http.api_prefix.rstrip("/")
    public = [prefix + path for path in PUBLIC]
    middleware: Any = [service, Cors(config.http), Readiness(service), Auth(config.http.keys(), public)]
    app: App[Request, Response] = App(middleware=middleware)
    app.req_options.strip_url_path_trailing_slash = True
    app.resp_options.default_media_type = errors.JSON
    errors.install(app)
    for path, resource in routes(service).items():
        if hasattr(resource, "on_get"):
            resource.on_head = resource.on_get
        app.add_route(prefix + path, resource)
    return app
