"""A vocabulary's pieces as a tree of characters, so that a grammar is asked about each shared beginning once."""

from dataclasses import dataclass

import numpy as np

from engine.vocab import Vocab

_LEVELS = 20  # of the tree; what is longer, mostly runs of one character, is finished one by one


@dataclass(frozen=True, slots=True)
class Level:
    """Nodes at one depth: for each the node above it, within the level above, and its character."""

    parents: np.ndarray
    chars: np.ndarray  # indices into `Pieces.chars`


@dataclass(frozen=True, slots=True)
class Cut:
    """Tokens that end inside a character, or go on below the last level."""

    tokens: np.ndarray
    nodes: np.ndarray
    rests: list[str]  # characters below the last level
    tails: list[bytes]  # an incomplete character at the end


class Pieces:
    """Read-only once made."""

    def __init__(self, vocab: Vocab) -> None:
        pieces = vocab.pieces(special=True)
        texts: list[tuple[str, int, bytes]] = []
        self.spoken = np.zeros(vocab.n_tokens, bool)  # tokens that are text and do not end a generation
        self.continuing: list[int] = []  # tokens that begin inside a character
        for token, piece in enumerate(pieces):
            if not piece or piece[0] == 0 or token in vocab.eog:
                continue
            self.spoken[token] = True
            if 0x80 <= piece[0] < 0xC0:
                self.continuing.append(token)
                continue
            whole, tail = split(piece)
            if tail is not None:
                texts.append((whole, token, tail))
        texts.sort()
        self._build(texts)

    def _build(self, texts: list[tuple[str, int, bytes]]) -> None:
        lengths = np.array([len(text) for text, _, _ in texts])
        points = np.frombuffer("".join(text for text, _, _ in texts).encode("utf-32-le", "surrogatepass"), np.uint32)
        offsets = np.cumsum(lengths) - lengths
        self.chars, inverse = np.unique(points, return_inverse=True)
        nodes = np.zeros(len(texts), np.int64)  # of each text, over all levels; 0 is the root
        within = np.zeros(len(texts), np.int32)  # the same, within its level
        self.levels: list[Level] = []
        self.n_nodes = 1
        for depth in range(_LEVELS):
            alive = np.flatnonzero(lengths > depth)
            if not len(alive):
                break
            parents, chars = within[alive], inverse[offsets[alive] + depth]
            new = np.ones(len(alive), bool)
            new[1:] = (parents[1:] != parents[:-1]) | (chars[1:] != chars[:-1])
            within[alive] = np.cumsum(new) - 1
            nodes[alive] = within[alive] + self.n_nodes
            self.levels.append(Level(parents[new], chars[new].astype(np.int32)))
            self.n_nodes += int(new.sum())
        self._sort_out(texts, nodes, lengths)

    def _sort_out(self, texts: list[tuple[str, int, bytes]], nodes: np.ndarray, lengths: np.ndarray) -> None:
        tokens = np.array([token for _, token, _ in texts], np.int64)
        is_cut = (lengths > _LEVELS) | np.array([bool(tail) for _, _, tail in texts], bool)
        self.tokens, self.nodes = tokens[~is_cut], nodes[~is_cut]
        cut = [texts[i] for i in np.flatnonzero(is_cut)]
        self.cut = Cut(tokens[is_cut], nodes[is_cut], [t[_LEVELS:] for t, _, _ in cut], [tail for _, _, tail in cut])


def split(raw: bytes) -> tuple[str, bytes | None]:
    """The characters of `raw` and the incomplete one at its end, None when it is not UTF-8."""
    try:
        return raw.decode(), b""
    except UnicodeDecodeError as problem:
        if problem.reason != "unexpected end of data":
            return "", None
        return raw[: problem.start].decode(), raw[problem.start :]


def point_range(tail: bytes) -> tuple[int, int]:
    """First and last code point that an incomplete UTF-8 character can still become."""
    n = 2 if tail[0] < 0xE0 else 3 if tail[0] < 0xF0 else 4
    value = tail[0] & (0x7F >> n)
    for byte in tail[1:]:
        value = value << 6 | byte & 0x3F
    bits = 6 * (n - len(tail))
    return max(value << bits, {2: 0x80, 3: 0x800, 4: 0x10000}[n]), min((value + 1 << bits) - 1, 0x10FFFF)
