"""Follows a GBNF grammar: the set of all its stacks as one state, made when it is first reached.

libllama keeps every stack apart, and a short grammar such as `e ::= t "+" e | t`, `t ::= "(" e ")" | [0-9]` has 2^n of
them after n brackets. Here stacks that agree at the top share one entry: a *node* maps positions in the grammar to the
node that holds what comes after; node 0 is the end of the text. The language is the same, the work is bounded.
"""

import numpy as np

from engine.gbnf_rules import CHARS, END, OTHER_TOKEN, REF, TOKEN, Gbnf
from engine.grammar import GrammarError

DEAD, UNKNOWN = -1, -2  # in `Machine.table`
_DONE = -1  # the position of an empty stack
MAX_WORK = 100_000  # stack entries touched for one token or one mask: a tenth of a second
_MAX_CELLS = 1_000_000  # of the table, 4 MB
_MAX_STATES = 20_000
_MAX_NODES = 50_000
_MAX_JOIN = 300  # depth to which two stacks are joined

Entries = tuple[tuple[int, int], ...]  # (position, node that follows), ascending


class Machine:
    """States are small integers. Not thread-safe: one thread owns it."""

    def __init__(self, gbnf: Gbnf) -> None:
        self.gbnf = gbnf
        self.table = np.empty((16, gbnf.n_atoms), np.int32)  # next state by state and atom, DEAD or UNKNOWN
        self.allowed: list[int] = []  # a bit for every atom that may come next, by state
        self._entries: list[Entries] = []  # of each state: only characters, tokens and the end
        self._states: dict[Entries, int] = {}
        self._nodes: list[Entries] = []
        self._node_ids: dict[Entries, int] = {}
        self._joined: dict[tuple[int, int], int] = {}
        self._budget = MAX_WORK
        self.work = 0  # done since `begin`
        end = self._node(((_DONE, 0),))
        self.start = self._close([(at, end) for at in gbnf.starts[gbnf.root]])

    @property
    def is_full(self) -> bool:
        """Whether it is time to begin anew with `moved`."""
        n_states, n_nodes = len(self._entries), max(len(self._nodes), len(self._joined))
        is_wide = n_states > 64 and n_states * self.gbnf.n_atoms > _MAX_CELLS
        return is_wide or n_states > _MAX_STATES or n_nodes > _MAX_NODES

    def begin(self, budget: int = MAX_WORK) -> None:
        """A new token or mask, which may cost this much work; beyond it what is asked raises GrammarError."""
        self._budget, self.work = budget, 0

    def done(self, state: int) -> bool:
        """Whether the text may end in `state`."""
        entries = self._entries[state]
        return bool(entries) and entries[0][0] == _DONE

    def step(self, state: int, atom: int) -> int:
        """The state after one character, DEAD when it may not come."""
        found = int(self.table[state, atom])
        if found == UNKNOWN:
            found = self._step(state, atom)
            self.table[state, atom] = found
        return found

    def step_token(self, state: int, token: int) -> list[tuple[int, int]]:
        """Entries after a token reference that `token` matches, for `join`."""
        kinds, values = self.gbnf.kinds, self.gbnf.values
        after = []
        for at, tail in self._entries[state]:
            if at != _DONE and kinds[at] in (TOKEN, OTHER_TOKEN) and (kinds[at] == TOKEN) == (values[at] == token):
                after.append((at + 1, tail))
        return after

    def names_tokens(self, state: int) -> list[tuple[bool, int]]:
        """The token references in `state`: (whether negated, token)."""
        kinds, values = self.gbnf.kinds, self.gbnf.values
        return [
            (kinds[at] == OTHER_TOKEN, values[at])
            for at, _ in self._entries[state]
            if at != _DONE and kinds[at] in (TOKEN, OTHER_TOKEN)
        ]

    def join(self, state: int, entries: list[tuple[int, int]]) -> int:
        """The state of `state`'s stacks, if it is not DEAD, and those of `entries`."""
        if not entries:
            return state
        return self._close(entries if state == DEAD else [*entries, *self._entries[state]])

    def moved(self, other: "Machine", state: int) -> int:
        """`state` of `other`, a machine for the same grammar, in this one."""
        mine: dict[int, int] = {0: 0}
        todo = [tail for _, tail in other._entries[state]]
        while todo:
            node = todo[-1]
            missing = [tail for _, tail in other._nodes[node] if tail not in mine]
            if node in mine or not missing:
                todo.pop()
                mine.setdefault(node, self._node(tuple((at, mine[tail]) for at, tail in other._nodes[node])))
            else:
                todo.extend(missing)
        return self._state(tuple((at, mine[tail]) for at, tail in other._entries[state]))

    def _step(self, state: int, atom: int) -> int:
        kinds, values, members = self.gbnf.kinds, self.gbnf.values, self.gbnf.members
        self._spend(len(self._entries[state]) // 16)
        after = [
            (at + 1, tail)
            for at, tail in self._entries[state]
            if at != _DONE and kinds[at] == CHARS and members[values[at]] >> atom & 1
        ]
        return self._close(after) if after else DEAD

    def _close(self, todo: list[tuple[int, int]]) -> int:
        """The state of these stacks, after entering rules and leaving them until a character or token is due."""
        kinds, values, starts = self.gbnf.kinds, self.gbnf.values, self.gbnf.starts
        tails: dict[int, int] = {}
        while todo:
            self._spend()
            at, tail = todo.pop()
            known = tails.get(at)
            if known is not None:
                tail = self._join(known, tail, 0)
                if tail == known:
                    continue
            tails[at] = tail
            if at == _DONE:
                continue
            if kinds[at] == END:
                todo.extend(self._nodes[tail])
            elif kinds[at] == REF:
                inner = tail if kinds[at + 1] == END else self._node(((at + 1, tail),))
                todo.extend((start, inner) for start in starts[values[at]])
        due = [(at, tail) for at, tail in tails.items() if at == _DONE or kinds[at] not in (END, REF)]
        return self._state(tuple(sorted(due)))

    def _state(self, entries: Entries) -> int:
        state = self._states.get(entries)
        if state is None:
            state = self._states[entries] = len(self._entries)
            self._entries.append(entries)
            self._add_row(state)
        return state

    def _add_row(self, state: int) -> None:
        kinds, values, members = self.gbnf.kinds, self.gbnf.values, self.gbnf.members
        bits = 0
        for at, _ in self._entries[state]:
            if at != _DONE and kinds[at] == CHARS:
                bits |= members[values[at]]
        self.allowed.append(bits)
        if state == len(self.table):
            self.table = np.concatenate([self.table, np.empty_like(self.table)])
        n_atoms = self.gbnf.n_atoms
        packed = np.frombuffer(bits.to_bytes((n_atoms + 7) // 8, "little"), np.uint8)
        self.table[state] = np.where(np.unpackbits(packed, count=n_atoms, bitorder="little"), UNKNOWN, DEAD)

    def _node(self, entries: Entries) -> int:
        node = self._node_ids.get(entries)
        if node is None:
            node = self._node_ids[entries] = len(self._nodes)
            self._nodes.append(entries)
        return node

    def _join(self, one: int, other: int, depth: int) -> int:
        """The node of both nodes' stacks."""
        if one == other:
            return one
        key = (one, other) if one < other else (other, one)
        if key not in self._joined:
            if depth > _MAX_JOIN:
                raise GrammarError("the grammar is too ambiguous: it can be followed in too many ways at once")
            tails = dict(self._nodes[one])
            for at, tail in self._nodes[other]:
                self._spend()
                tails[at] = self._join(tails[at], tail, depth + 1) if at in tails else tail
            self._joined[key] = self._node(tuple(sorted(tails.items())))
        return self._joined[key]

    def _spend(self, n: int = 1) -> None:
        self.work += n
        if self.work > self._budget:
            raise GrammarError("the grammar is too ambiguous: it can be followed in too many ways at once")
