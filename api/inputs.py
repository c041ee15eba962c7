"""What is to be embedded: the forms in which inputs may come, as token ids in two arrays; `spec/endpoints.md` §7."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec import Struct

from api.errors import ApiError, invalid
from api.fields import kind_of
from api.prompts import Tokens, checked, encode, is_id, read_mixed
from ipc.messages import Embed, Welcome

FORMS = "must be a string, an array of tokens, an array of mixed strings and tokens, an object, or an array of those"
NO_MEDIA = "the model takes no images, audio or video, only text"


class Inputs(Struct, frozen=True):
    """Several inputs: their tokens one after the other, and how many each has."""

    tokens: Tokens
    lengths: Tokens

    @classmethod
    def of(cls, parts: list[Tokens]) -> "Inputs":
        """The inputs in `parts`."""
        tokens = np.concatenate(parts) if parts else np.empty(0, np.int32)
        return cls(tokens, np.fromiter(map(len, parts), np.int32, len(parts)))

    def __len__(self) -> int:
        return len(self.lengths)

    def task(self) -> Embed:
        """The engine's task for all of them."""
        return Embed(0, self.tokens.astype("<i4", copy=False).tobytes(), self.lengths.astype("<i4").tobytes())


def read_inputs(vocab: Any, value: Any, name: str = "input") -> list[Tokens]:
    """The token ids of each input in the JSON `value` of field `name`; raises `ApiError` 400."""
    several = isinstance(value, list) and not any(is_id(item) for item in value)
    if several and not value:
        raise invalid(f'"{name}" must not be empty')
    return [read_input(vocab, item, name) for item in (value if several else [value])]


def read_input(vocab: Any, value: Any, name: str) -> Tokens:
    """The ids of one input."""
    if isinstance(value, str):
        return encode(vocab, value, add_special=True)
    if isinstance(value, dict):
        return encode(vocab, object_text(value, name), add_special=True)
    if isinstance(value, list) and all(is_id(item) for item in value):
        return checked(vocab, value)
    if isinstance(value, list) and all(is_id(item) or isinstance(item, str) for item in value):
        return read_mixed(vocab, value, add_special=True, parse_special=True)
    raise invalid(f'"{name}" {FORMS}, but is or contains {kind_of(value)}')


def object_text(value: dict[str, Any], name: str) -> str:
    """The text of `{"prompt_string": …}` or `{"content": [parts]}`."""
    if value.get("multimodal_data"):
        raise invalid(f'"{name}": multimodal_data is given, but {NO_MEDIA}')
    text = value.get("prompt_string", value.get("content"))
    if isinstance(text, list):
        text = "".join(part_text(part, name) for part in text)
    if not isinstance(text, str):
        raise invalid(f'"{name}": an object needs a "prompt_string" or "content"')
    return text


def part_text(part: Any, name: str) -> str:
    """The text of one part of a content."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in ("image_url", "input_audio", "input_video", "video_url"):
        raise invalid(f'"{name}": a content part is of type {kind}, but {NO_MEDIA}')
    raise invalid(f'"{name}": a content part must be {{"type": "text", "text": …}}')


def fit(parts: list[Tokens], limit: int, *, truncate: bool, vocab: Any) -> list[Tokens]:
    """`parts`, none of them longer than `limit` tokens: those that are get cut, or refused by name."""
    for index, tokens in enumerate(parts):
        if not len(tokens):
            raise ApiError(400, f"Input content cannot be empty: input {index} has no tokens", index=index)
        if len(tokens) > limit:
            if not truncate:
                raise too_long(index, len(tokens), limit)
            parts[index] = cut(tokens, limit, vocab)
    return parts


def too_long(index: int, n: int, limit: int) -> ApiError:
    """400 with everything a client needs to mend its request."""
    message = f"input {index} ({n} tokens) is too large to process: at most {limit} tokens fit; shorten it, or send"
    extra = {"n_prompt_tokens": n, "n_ctx": limit, "index": index}
    return ApiError(400, f'{message} "truncate": true', "exceed_context_size_error", **extra)


def cut(tokens: Tokens, limit: int, vocab: Any) -> Tokens:
    """The first `limit` tokens; one that the vocabulary puts at the end stays there."""
    last = int(tokens[-1])
    if limit > 1 and last in closing(vocab):
        return np.append(tokens[: limit - 1], np.int32(last))
    return tokens[:limit]


def closing(vocab: Any) -> Iterable[int]:
    """Tokens that the vocabulary adds after a text."""
    pairs = ((vocab.add_eos, vocab.eos), (vocab.add_sep, vocab.sep))
    return [token for added, token in pairs if added and token is not None]


def limit_of(info: Welcome) -> int:
    """Tokens that one input may have; raises 501 when the engine makes no vectors."""
    if info.n_embed_tokens is None:
        raise ApiError(501, "This server does not support embeddings. Start it with `--embeddings`")
    return info.n_embed_tokens
