"""Refuses rules that cannot be followed: left recursion, and chains of rules that are too long."""

from collections.abc import Callable

from engine.gbnf_rules import REF, Rule

MAX_CHAIN = 1000  # rules entered one within the other before a character is read

Explain = Callable[[int, str], Exception]


def check_rules(rules: list[Rule], loops: set[int], explain: Explain) -> None:
    """`loops` are the rules that a repetition generated: they may begin with themselves when that can be empty."""
    nullable = find_nullable(rules)
    first = [_entered_first(rule, nullable, number if number in loops else None) for number, rule in enumerate(rules)]
    _check_chains(first, explain)


def find_nullable(rules: list[Rule]) -> list[bool]:
    """Which rules match the empty text. Linear: an alternative waits for the rule it stopped at."""
    nullable = [False] * len(rules)
    waiting: dict[int, list[tuple[int, int, int]]] = {}  # rule: alternatives that stopped at it
    todo = [(number, choice, 0) for number, rule in enumerate(rules) for choice in range(len(rule))]
    while todo:
        number, choice, at = todo.pop()
        sequence = rules[number][choice]
        while at < len(sequence) and sequence[at][0] == REF and nullable[sequence[at][1]]:
            at += 1
        if at == len(sequence):
            if not nullable[number]:
                nullable[number] = True
                todo.extend(waiting.pop(number, ()))
        elif sequence[at][0] == REF:
            waiting.setdefault(sequence[at][1], []).append((number, choice, at))
    return nullable


def _entered_first(rule: Rule, nullable: list[bool], itself: int | None) -> list[int]:
    """The rules that can be entered before a character is read."""
    found: dict[int, None] = {}
    for sequence in rule:
        for kind, value in sequence:
            if kind != REF:
                break
            if value != itself:
                found[value] = None
            if not nullable[value]:
                break
    return list(found)


def _check_chains(first: list[list[int]], explain: Explain) -> None:
    """Depth-first without recursion: a rule met again while it is open is left-recursive."""
    depth: list[int | None] = [None] * len(first)
    open_rules: set[int] = set()
    for start in range(len(first)):
        path = [(start, iter(first[start]))] if depth[start] is None else []
        open_rules.update(number for number, _ in path)
        while path:
            number, entered = path[-1]
            child = next(entered, None)
            if child is None:
                path.pop()
                open_rules.discard(number)
                depth[number] = 1 + max((depth[other] or 0 for other in first[number]), default=0)
                if (depth[number] or 0) > MAX_CHAIN:
                    raise explain(number, f"enters more than {MAX_CHAIN} rules before it reads a character")
            elif child in open_rules:
                raise explain(child, "is left-recursive: it can begin with itself")
            elif depth[child] is None:
                open_rules.add(child)
                path.append((child, iter(first[child])))
