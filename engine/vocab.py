"""A model's vocabulary: text to tokens, tokens to bytes, and what the special tokens are."""

import ctypes
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine import library, llama
from engine.gguf import model_metadata, open_model

Tokens = npt.NDArray[np.int32]

PIECE_BYTES = 16  # first guess of a piece's length, on average


class Vocab:
    """Safe to use from several threads. The model it came from must outlive it."""

    def __init__(self, model: llama.Model) -> None:
        self._model = model
        self._owned = False
        self._pieces: dict[bool, list[bytes]] = {}
        self.ptr = ptr = llama.llama_model_get_vocab(model)
        self.n_tokens = llama.llama_vocab_n_tokens(ptr)
        self.type = llama.VocabType(llama.llama_vocab_type(ptr))
        self.add_bos = llama.llama_vocab_get_add_bos(ptr)
        self.add_eos = llama.llama_vocab_get_add_eos(ptr)
        self.add_sep = llama.llama_vocab_get_add_sep(ptr)
        self.bos = _some(llama.llama_vocab_bos(ptr))
        self.eos = _some(llama.llama_vocab_eos(ptr))
        self.eot = _some(llama.llama_vocab_eot(ptr))
        self.sep = _some(llama.llama_vocab_sep(ptr))
        self.nl = _some(llama.llama_vocab_nl(ptr))
        self.pad = _some(llama.llama_vocab_pad(ptr))
        self.mask = _some(llama.llama_vocab_mask(ptr))
        self.fim_pre = _some(llama.llama_vocab_fim_pre(ptr))
        self.fim_suf = _some(llama.llama_vocab_fim_suf(ptr))
        self.fim_mid = _some(llama.llama_vocab_fim_mid(ptr))
        self.fim_pad = _some(llama.llama_vocab_fim_pad(ptr))
        self.fim_rep = _some(llama.llama_vocab_fim_rep(ptr))
        self.fim_sep = _some(llama.llama_vocab_fim_sep(ptr))

    @classmethod
    def load(cls, path: str | Path) -> "Vocab":
        """Only the vocabulary of the GGUF file `path`: no weights, no compute devices. Close it when done."""
        library.load()
        params = llama.llama_model_default_params()
        params.vocab_only = True
        vocab = cls(open_model(path, params))
        vocab._owned = True
        return vocab

    def close(self) -> None:
        """Free what `load` took; the vocabulary of a `Model` goes with the model."""
        if self._owned:
            self._owned = False
            llama.llama_model_free(self._model)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> Tokens:
        """The tokens of `text`. `add_special` adds what the model wants around a text, such as BOS;
        `parse_special` reads spelled-out control tokens as such, otherwise they are plain text.
        """
        raw = utf8(text)
        tokens = np.empty(len(raw) + 8, np.int32)
        n = self._tokenize(raw, tokens, add_special, parse_special)
        if n < 0:
            tokens = np.empty(-n, np.int32)
            n = self._tokenize(raw, tokens, add_special, parse_special)
        return tokens[:n].copy()

    def _tokenize(self, raw: bytes, tokens: Tokens, add_special: bool, parse_special: bool) -> int:
        address, size = tokens.ctypes.data, len(tokens)
        return llama.llama_tokenize(self.ptr, raw, len(raw), address, size, add_special, parse_special)

    def decode(self, tokens: Iterable[int], special: bool = True) -> bytes:
        """The pieces of `tokens`, joined. Every id must be one of the vocabulary."""
        pieces = self.pieces(special)
        return b"".join([pieces[token] for token in tokens])

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of one token; nothing for a control token unless `special`."""
        return self.pieces(special)[token]

    def pieces(self, special: bool) -> list[bytes]:
        """The bytes of every token, by id; made on first use."""
        if special not in self._pieces:
            self._pieces[special] = self._read_pieces(special)
        return self._pieces[special]

    def _read_pieces(self, special: bool) -> list[bytes]:
        to_piece, ptr = llama.llama_token_to_piece, self.ptr
        buffer = np.empty(PIECE_BYTES * self.n_tokens + 256, np.uint8)
        address, ends = buffer.ctypes.data, [0]
        for token in range(self.n_tokens):
            end = ends[-1]
            length = to_piece(ptr, token, address + end, len(buffer) - end, 0, special)
            if length < 0:  # minus the size needed
                buffer = np.concatenate([buffer, np.empty(len(buffer) - length, np.uint8)])
                address = buffer.ctypes.data
                length = to_piece(ptr, token, address + end, len(buffer) - end, 0, special)
            ends.append(end + length)
        joined = buffer.tobytes()
        return [joined[start:end] for start, end in pairwise(ends)]

    def text(self, token: int) -> str:
        """The token as the model file spells it."""
        return (llama.llama_vocab_get_text(self.ptr, token) or b"").decode("utf-8", "replace")

    def attributes(self, token: int) -> int:
        """The bits of `llama_token_attr`."""
        return llama.llama_vocab_get_attr(self.ptr, token)

    def is_eog(self, token: int) -> bool:
        """Whether `token` ends a generation."""
        return token in self.eog

    @cached_property
    def eog(self) -> frozenset[int]:
        """The tokens that end a generation."""
        return frozenset(t for t in range(self.n_tokens) if llama.llama_vocab_is_eog(self.ptr, t))

    @cached_property
    def control(self) -> frozenset[int]:
        """The tokens that mark something instead of being text."""
        return frozenset(t for t in range(self.n_tokens) if llama.llama_vocab_is_control(self.ptr, t))

    @cached_property
    def suppress(self) -> list[int]:
        """The tokens that, by the model's file, must never be generated."""
        n = ctypes.c_int32()
        first = llama.llama_vocab_get_suppress_tokens(self.ptr, ctypes.byref(n))
        return list((ctypes.c_int32 * n.value).from_address(first.value)) if first and n.value > 0 else []

    @cached_property
    def meta(self) -> dict[str, str]:
        """The scalars of the model file's metadata, as text."""
        return model_metadata(self._model)

    def chat_template(self, name: str | None = None) -> str | None:
        """The model's chat template, or the one of its templates called `name`, such as "tool_use"."""
        template = llama.llama_model_chat_template(self._model, name.encode() if name else None)
        return template.decode("utf-8", "replace") if template else None


def utf8(text: str) -> bytes:
    """`text` as valid UTF-8, which libllama relies on: surrogate pairs joined, lone surrogates replaced."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _some(token: int) -> int | None:
    return None if token == llama.TOKEN_NULL else token
