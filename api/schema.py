"""From a request body to `Params`, and back to the settings that answers show. `api.table` holds the fields."""

from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from api.constraints import awaken, grammar, json_schema, read_constraint
from api.errors import invalid
from api.fields import Field
from api.metadata import sampling_defaults
from api.params import Lazy, Params, Thinking, new_params
from api.table import CONSTRAINTS, SETTINGS, TABLE
from ipc.config import Config
from ipc.messages import Constraint, ReasoningBudget, Sampling

FIELDS = {field.name: field for field in TABLE}


class Schema:
    """Reads and checks request bodies for one model under one configuration."""

    def __init__(self, config: Config, vocab: Any) -> None:
        self.vocab = vocab
        self.limit = config.engine.predict
        self.drafts = ",".join(config.speculative.types) or "none"
        self.n_slots: int | None = None
        self.constraint = server_constraint(config)
        self.defaults = self.server_defaults(config)

    def server_defaults(self, config: Config) -> Params:
        """What a request gets that says nothing."""
        params = new_params(Sampling())
        for field in TABLE:
            if field.source:
                field.put(params, default_of(field, config, self.vocab))
        for name, value in sampling_defaults(self.vocab.meta).items():
            if f"sampling.{name}" not in config.given:
                setattr(params.task.sampling, name, value)
        params.task.stream = False
        params.verbose = config.log.verbosity > 9
        return params

    def fresh(self) -> Params:
        """A copy of the defaults that the reader may change; shared lists are replaced, never changed in place."""
        params = replace(self.defaults, lazy=Lazy(), thinking=replace(self.defaults.thinking))
        params.task = replace(self.defaults.task, sampling=replace(self.defaults.task.sampling))
        return params

    def read(self, body: dict[str, Any]) -> Params:
        """The checked parameters of a request. Raises `ApiError` 400 that names the field."""
        params = self.fresh()
        for field in TABLE:
            found = field.find(body)
            if found is not None:
                field.put(params, field.parse(*found, self.vocab))
        params.include_usage = include_usage(body)
        self.complete(params, body)
        return params

    def complete(self, params: Params, body: Mapping[str, Any]) -> None:
        """What follows from several fields together."""
        task, sampling = params.task, params.task.sampling
        if sampling.dry_base < 1:
            sampling.dry_base = self.defaults.task.sampling.dry_base
        check_penalties(sampling)
        if not task.stop:
            task.stop = self.defaults.task.stop
        task.max_tokens = least(task.max_tokens, self.limit)
        task.progress = task.progress and task.stream
        task.queue_position = task.queue_position and task.stream
        self.check_counts(params)
        constraint = read_constraint(dict(body), self.constraint)
        task.constraint = awaken(constraint, params.lazy, task.preserved_tokens, self.vocab)
        task.reasoning = budget(params.thinking)
        task.prompt_probs = params.prompt_logprobs is not None or (params.echo and task.n_probs > 0)

    def check_counts(self, params: Params) -> None:
        """`n` and `id_slot` against the number of slots, once the engine has told it."""
        if self.n_slots is None:
            return
        if params.n > self.n_slots:
            raise invalid(f"Field 'n_cmpl': Value must be between 1 <= value <= {self.n_slots}, but got {params.n}")
        if params.task.slot is not None and params.task.slot >= self.n_slots:
            raise invalid(
                f"Field 'id_slot': Value must be between 0 <= value < {self.n_slots}, but got {params.task.slot}"
            )

    def settings(self, params: Params, full: bool = True) -> dict[str, Any]:
        """`generation_settings` (generation.md §9); without the members marked "full" for /props and /slots."""
        derived = self.derived(params)
        shown: dict[str, Any] = {}
        for name in SETTINGS:
            field = FIELDS.get(name)
            if field is None:
                if full or name != "grammar":
                    shown[name] = derived[name]
            elif full or field.settings == "reduced":
                shown[name] = field.get(params)
        return shown

    def derived(self, params: Params) -> dict[str, Any]:
        """The members of the settings that are no fields."""
        constraint, tokens = params.task.constraint, params.task.max_tokens
        return {
            "max_tokens": -1 if tokens is None else tokens,
            "grammar": constraint.text if constraint is not None else "",
            "reasoning_in_content": params.stream and params.reasoning_format == "deepseek-legacy",
            "speculative.types": self.drafts,
        }


def default_of(field: Field, config: Config, vocab: Any) -> Any:
    """A field's value in the configuration, in the form in which requests store it."""
    value = attrgetter(field.source)(config)
    if isinstance(value, tuple):
        return list(value)
    if field.name == "reasoning_budget_message":
        return field.parse(field.name, value, vocab)
    return value


def server_constraint(config: Config) -> Constraint | None:
    """The grammar or schema that the server was started with."""
    sampling = config.sampling
    text = sampling.grammar or (Path(sampling.grammar_file).read_text() if sampling.grammar_file else None)
    if text:
        return grammar(text)
    file = sampling.json_schema_file
    schema = sampling.json_schema or (Path(file).read_text() if file else None)
    return json_schema(schema) if schema else None


def include_usage(body: Mapping[str, Any]) -> bool:
    """`stream_options.include_usage`."""
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise invalid("Field 'stream_options': type must be an object")
    value = options.get("include_usage", False)
    if not isinstance(value, bool | None):
        raise invalid("Field 'stream_options.include_usage': type must be a boolean")
    return bool(value)


def check_penalties(sampling: Sampling) -> None:
    """Values that libllama's penalties cannot take."""
    if sampling.repeat_penalty <= 0:
        raise invalid(f"Field 'repeat_penalty': Value must be above 0, but got {sampling.repeat_penalty:g}")


def least(*limits: int | None) -> int | None:
    """The smallest of several limits of which None is the widest."""
    given = [limit for limit in limits if limit is not None]
    return min(given) if given else None


def budget(thinking: Thinking) -> ReasoningBudget | None:
    """The engine's reasoning budget, when the tags are known and there is something to control."""
    if not thinking.start or not thinking.ends or (thinking.tokens is None and not thinking.control):
        return None
    forced = [*thinking.message, *thinking.ends[0]]
    return ReasoningBudget(thinking.start, thinking.ends, forced, thinking.tokens, thinking.control)


def reference() -> str:
    """The text of `docs/parameters.md`."""
    rows = [row(field) for field in TABLE]
    rows += [f"| `{name}` | {kind} | | | {help} |" for name, kind, help in CONSTRAINTS]
    head = (
        "# Request fields\n\nGenerated by `python -m api.schema`. `null` means absent; a value outside a hard range is"
        " an error, one outside a soft range is limited.\n\n| Field | Type | Default | Range | Meaning |\n"
        "|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def row(field: Field) -> str:
    """One line of the reference."""
    names = ", ".join(f"`{name}`" for name in (field.name, *field.aliases))
    limits = field.hard or field.clamp
    bounds = f"{'hard' if field.hard else 'soft'} {limits[0]:g} … {limits[1]:g}" if limits else ""
    default = f"`{field.source}`" if field.source else ""
    return f"| {names} | {field.kind} | {default} | {bounds} | {field.help} |"


if __name__ == "__main__":
    print(reference(), end="")
