"""What a parsed GBNF grammar is: rules of elements, and the same laid out flat for the machine."""

from bisect import bisect_right
from dataclasses import dataclass, field

END, REF, CHARS, TOKEN, OTHER_TOKEN = range(5)  # kinds of element: OTHER_TOKEN is any token but one
MAX_POINT = 0x10FFFF

Element = tuple[int, int]  # kind, and the rule, character set or token
Sequence = list[Element]
Rule = list[Sequence]  # alternatives
Ranges = list[tuple[int, int]]  # code points, first and last


@dataclass(slots=True)
class CharSets:
    """The distinct character sets of a grammar."""

    sets: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    _ids: dict[tuple[tuple[int, int], ...], int] = field(default_factory=dict)

    def element(self, ranges: Ranges) -> Element:
        """The element that matches one character of `ranges`."""
        key = tuple(ranges)
        if key not in self._ids:
            self._ids[key] = len(self.sets)
            self.sets.append(key)
        return CHARS, self._ids[key]


@dataclass(frozen=True, slots=True)
class Gbnf:
    """Elements of all alternatives in one row, each alternative closed by END.

    Characters that no set tells apart are one *atom*; `members[s]` has a bit for every atom in set `s`.
    """

    kinds: list[int]
    values: list[int]
    starts: list[list[int]]  # of each rule's alternatives
    root: int
    cuts: list[int]  # the first code point of every atom but the lowest
    members: list[int]

    @property
    def n_atoms(self) -> int:
        return len(self.cuts) + 1

    def atom(self, point: int) -> int:
        """The atom of a code point."""
        return bisect_right(self.cuts, point)


def flatten(rules: list[Rule], root: int, sets: CharSets) -> Gbnf:
    """Lay `rules` out."""
    kinds: list[int] = []
    values: list[int] = []
    starts: list[list[int]] = []
    for rule in rules:
        starts.append([])
        for sequence in rule:
            starts[-1].append(len(kinds))
            kinds.extend(kind for kind, _ in sequence)
            values.extend(value for _, value in sequence)
            kinds.append(END)
            values.append(0)
    cuts = sorted({edge for ranges in sets.sets for first, last in ranges for edge in (first, last + 1)} - {0})
    return Gbnf(kinds, values, starts, root, cuts, [_members(ranges, cuts) for ranges in sets.sets])


def _members(ranges: tuple[tuple[int, int], ...], cuts: list[int]) -> int:
    bits = 0
    for first, last in ranges:
        low, high = bisect_right(cuts, first), bisect_right(cuts, last)
        bits |= ((1 << (high - low + 1)) - 1) << low
    return bits
