"""A vocabulary without a model: one token per byte and a few special ones."""

from collections.abc import Iterable

import numpy as np

SPECIAL = {256: b"<s>", 257: b"</s>", 258: b"<pre>", 259: b"<suf>", 260: b"<mid>"}


class TinyVocab:
    """The interface of `engine.vocab.Vocab` as far as the API uses it."""

    special = SPECIAL
    n_tokens = 261
    add_eos = False
    bos: int | None = 256
    eos: int | None = 257
    sep: int | None = None
    add_sep = False
    fim_pre: int | None = 258
    fim_suf: int | None = 259
    fim_mid: int | None = 260
    fim_rep: int | None = None
    fim_sep: int | None = None

    def __init__(self, *, add_bos: bool = False, meta: dict[str, str] | None = None) -> None:
        self.add_bos = add_bos
        self.meta = meta or {}
        self.eog = frozenset({257})

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> np.ndarray:
        """Bytes as tokens; special tokens' names as theirs when `parse_special`."""
        raw, tokens = text.encode(), [256] if add_special and self.add_bos else []
        while raw:
            found = [t for t, name in self.special.items() if parse_special and raw.startswith(name)]
            tokens.append(found[0] if found else raw[0])
            raw = raw[len(self.special[found[0]]) if found else 1 :]
        return np.array(tokens, np.int32)

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of one token."""
        if token in self.special:
            return self.special[token] if special else b""
        return bytes([token])

    def pieces(self, special: bool) -> list[bytes]:
        """The bytes of all."""
        return [self.piece(token, special) for token in range(self.n_tokens)]

    def decode(self, tokens: Iterable[int], special: bool = True) -> bytes:
        """The bytes of several."""
        return b"".join(self.piece(token, special) for token in tokens)

    def text(self, token: int) -> str:
        """The token's name."""
        return self.piece(token, special=True).decode("latin-1")

    def attributes(self, token: int) -> int:
        """Bits of `llama_token_attr`: control or byte."""
        return 8 if token in self.special else 32

    def is_eog(self, token: int) -> bool:
        """Whether `token` ends a generation."""
        return token in self.eog

    def chat_template(self, name: str | None = None) -> str | None:
        """There is one, but not for tools."""
        return None if name else "{{ messages }}"

    def close(self) -> None:
        """Nothing to free."""
