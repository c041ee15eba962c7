"""GET /metrics: the engine's counters in Prometheus' text format; names of `spec/engine.md` §11."""

from falcon.asgi import Request, Response

from api.errors import unsupported
from api.service import Service
from ipc.messages import GetMetrics, MetricsReply

DISABLED = "This server does not support metrics endpoint. Start it with `--metrics`"
PREFIX = "llamacpp:"
PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"

METRICS = {
    "prompt_tokens_total": ("counter", "Number of prompt tokens processed."),
    "prompt_tokens_cached_total": ("counter", "Number of prompt tokens reused from a cache."),
    "prompt_seconds_total": ("counter", "Prompt processing time in seconds."),
    "tokens_predicted_total": ("counter", "Number of generated tokens."),
    "tokens_predicted_seconds_total": ("counter", "Generation time in seconds."),
    "n_decode_total": ("counter", "Number of decode steps."),
    "n_tokens_max": ("counter", "Longest sequence seen, in tokens."),
    "spec_decode_num_draft_tokens_total": ("counter", "Number of drafted tokens."),
    "spec_decode_num_accepted_tokens_total": ("counter", "Number of drafted tokens that were accepted."),
    "spec_decode_num_drafts_total": ("counter", "Number of drafts."),
    "prompt_tokens_seconds": ("gauge", "Prompt tokens per second since the last scrape."),
    "predicted_tokens_seconds": ("gauge", "Generated tokens per second since the last scrape."),
    "requests_processing": ("gauge", "Number of requests being processed."),
    "requests_deferred": ("gauge", "Number of requests waiting for a slot."),
    "n_busy_slots_per_decode": ("gauge", "Average number of busy slots per decode step."),
}


class Metrics:
    """Reading them starts a new window for the rates."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def on_get(self, req: Request, resp: Response) -> None:
        """The text."""
        if not self.service.config.http.metrics:
            raise unsupported(DISABLED)
        reply: MetricsReply = await self.service.client.call(GetMetrics(0))
        resp.content_type = "text/plain; version=0.0.4"
        resp.set_header("Process-Start-Time-Unix", str(int(self.service.started * 1e6)))
        resp.data = "".join(lines(reply)).encode()


def lines(reply: MetricsReply) -> list[str]:
    """All metrics that the engine gave, in the order of `METRICS`, others behind them."""
    order = [*METRICS, *sorted(reply.values.keys() - METRICS.keys())]
    text = [metric(name, reply.values[name]) for name in order if name in reply.values]
    if reply.accepted_per_position:
        text.append(head(PER_POSITION, "counter", "Number of accepted tokens by their position in the draft."))
        counts = enumerate(reply.accepted_per_position)
        text += [f'{PREFIX}{PER_POSITION}{{position="{position}"}} {count}\n' for position, count in counts]
    return text


def metric(name: str, value: float) -> str:
    """Help, type and value of one metric."""
    kind, text = METRICS.get(name, ("counter" if name.endswith("_total") else "gauge", name.replace("_", " ")))
    return f"{head(name, kind, text)}{PREFIX}{name} {value:.10g}\n"


def head(name: str, kind: str, text: str) -> str:
    """The comment lines before a metric."""
    return f"# HELP {PREFIX}{name} {text}\n# TYPE {PREFIX}{name} {kind}\n"
