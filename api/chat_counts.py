"""Numbers about a chat answer that several APIs show."""

from msgspec import Raw
from msgspec.structs import replace

from api.chat_events import Answer
from api.chat_run import ChatRun
from api.probs import Scored


def reasoning_tokens(run: ChatRun, answer: Answer) -> int:
    """How many of the generated tokens are thinking: as many as its text has, without the marks around it."""
    thought = answer.thought
    if not thought or answer.final is None:
        return 0
    n = len(run.service.vocab.encode(thought, add_special=False, parse_special=False))
    return min(n, answer.final.timings.predicted_n)


def logprobs(run: ChatRun, scored: list[Scored | None]) -> list[Raw]:
    """Log-probabilities with as many alternatives as the request asked for; none if it asked for none."""
    tops = run.tops
    if tops is None:
        return []
    kept = [replace(one, best=one.best[:tops], values=one.values[:tops]) for one in scored if one is not None]
    return run.service.probs.items(kept)
