"""A WordPiece vocabulary from a Hugging Face folder, in the spelling that libllama expects."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from gguf import GGUFWriter, TokenType

_SPACE = "\u2581"  # begins a word in libllama's spelling; Hugging Face marks a continuation, by "##"
_SPECIAL = {  # libllama's role to Hugging Face's, and how it is spelled unless the folder says otherwise
    "bos": ("cls_token", "[CLS]"),
    "unknown": ("unk_token", "[UNK]"),
    "seperator": ("sep_token", "[SEP]"),
    "padding": ("pad_token", "[PAD]"),
    "mask": ("mask_token", "[MASK]"),
}


class ConvertError(ValueError):
    """A folder cannot be converted; the text says what is missing or not supported."""


@dataclass(slots=True)
class WordPiece:
    """Tokens by id, as Hugging Face spells them, and how text is prepared for them."""

    tokens: list[str]
    control: set[str]
    special: dict[str, int]  # by libllama's roles
    lowercase: bool
    strip_accents: bool

    @classmethod
    def read(cls, folder: Path, n_tokens: int) -> "WordPiece":
        """Of `tokenizer.json`, or `vocab.txt`, padded to `n_tokens`. ConvertError says what is wrong."""
        tokenizer, config = read_json(folder / "tokenizer.json"), read_json(folder / "tokenizer_config.json")
        ids = _ids(folder, tokenizer)
        if not ids or max(ids.values()) >= n_tokens:
            raise ConvertError(f"{folder}: {len(ids)} tokens in the vocabulary, {n_tokens} rows in the embeddings")
        tokens = [f"[PAD{i}]" for i in range(n_tokens)]
        for token, index in ids.items():
            tokens[index] = token
        names = {role: _name(config.get(key, usual)) for role, (key, usual) in _SPECIAL.items()}
        added = {entry["content"] for entry in tokenizer.get("added_tokens", []) if entry.get("special")}
        lowercase, strip = _normalizer(tokenizer, config)
        special = {role: ids[name] for role, name in names.items() if name in ids}
        return cls(tokens, added | set(names.values()), special, lowercase, strip)

    def write(self, writer: GGUFWriter) -> None:
        """Add everything to a GGUF file."""
        writer.add_tokenizer_model("bert")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([self._spelled(token) for token in self.tokens])
        writer.add_token_types([TokenType.CONTROL if t in self.control else TokenType.NORMAL for t in self.tokens])
        for role, token in self.special.items():
            writer.add_uint32(f"tokenizer.ggml.{role}_token_id", token)
        writer.add_bool("tokenizer.ggml.normalizer.lowercase", self.lowercase)
        writer.add_bool("tokenizer.ggml.normalizer.strip_accents", self.strip_accents)
        writer.add_add_bos_token(True)
        writer.add_bool("tokenizer.ggml.add_sep_token", True)

    def _spelled(self, token: str) -> str:
        if token in self.control:
            return token
        return token.removeprefix("##") if token.startswith("##") else _SPACE + token


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConvertError(f"{path}: {error}") from None


def _ids(folder: Path, tokenizer: dict[str, Any]) -> dict[str, int]:
    model = tokenizer.get("model", {})
    if model.get("type", "WordPiece") != "WordPiece":
        raise ConvertError(f"{folder}: the tokenizer is a {model['type']}; only WordPiece is supported")
    if "vocab" in model:
        added = {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens", [])}
        return {**model["vocab"], **added}
    lines = folder / "vocab.txt"
    if not lines.is_file():
        raise ConvertError(f"{folder}: neither tokenizer.json nor vocab.txt in it")
    return {token: index for index, token in enumerate(lines.read_text("utf-8").splitlines())}


def _name(given: Any) -> str:
    """A special token's text, given as such or as an object."""
    return str(given["content"] if isinstance(given, dict) else given)


def _normalizer(tokenizer: dict[str, Any], config: dict[str, Any]) -> tuple[bool, bool]:
    """Whether text is lowercased, and whether accents are stripped (by default along with the case)."""
    given = tokenizer.get("normalizer") or {}
    lowercase = bool(given.get("lowercase", config.get("do_lower_case", True)))
    strip = given.get("strip_accents", config.get("strip_accents"))
    return lowercase, lowercase if strip is None else bool(strip)
