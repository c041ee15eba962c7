"""Parts that the results of several APIs have in common: `spec/generation.md` §8."""

import secrets
import string
from typing import Any

from ipc.messages import Final, Progress, Timings

ALPHANUMERIC = string.ascii_letters + string.digits


def random_id(prefix: str) -> str:
    """`prefix` and 32 random letters and digits."""
    return prefix + "".join(secrets.choice(ALPHANUMERIC) for _ in range(32))


def timings_shown(timings: Timings) -> dict[str, Any]:
    """Counts, milliseconds and rates; the first generated token takes no step, so rates count one less."""
    steps = max(timings.predicted_n - 1, 0)
    shown = {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": ratio(timings.prompt_ms, timings.prompt_n),
        "prompt_per_second": ratio(1000 * timings.prompt_n, timings.prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": ratio(timings.predicted_ms, steps),
        "predicted_per_second": ratio(1000 * steps, timings.predicted_ms),
        "queue_ms": timings.queue_ms,
    }
    if timings.draft_n:
        shown |= {"draft_n": timings.draft_n, "draft_n_accepted": timings.draft_n_accepted}
    return shown


def ratio(value: float, count: float) -> float:
    """`value` / `count`, 0 when there is nothing to divide by."""
    return value / count if count > 0 else 0.0


def progress_shown(progress: Progress) -> dict[str, Any]:
    """`prompt_progress`."""
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": progress.ms,
    }


def usage_of(groups: list[list[Final]]) -> dict[str, Any]:
    """`usage` of the completions of several prompts: generated tokens summed, each prompt counted once."""
    finals = [final for group in groups for final in group]
    firsts = [group[0] for group in groups if group]
    generated = sum(final.timings.predicted_n for final in finals)
    prompt = sum(final.n_prompt for final in firsts)
    return {
        "completion_tokens": generated,
        "prompt_tokens": prompt,
        "total_tokens": generated + prompt,
        "prompt_tokens_details": {"cached_tokens": sum(final.timings.cache_n for final in firsts)},
    }


def finish_reason(final: Final) -> str:
    """OpenAI's word for why a completion ended."""
    return "stop" if final.reason in ("eos", "word") else "length"


def nested(paths: list[str], result: dict[str, Any]) -> dict[str, Any]:
    """The members of `result` named by `paths`; `a/b` is looked up inside `a` and keeps its full name."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = result
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            found[path] = value
    return found
