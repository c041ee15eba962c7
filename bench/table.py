"""Tables of results, for the terminal or as Markdown."""

from collections.abc import Sequence


def render(head: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> str:
    """The rows below `head`; numbers (every column but the first two) to the right."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "| " + " | ".join(cells) + " |" if markdown else "  ".join(cells).rstrip()

    rule = ["-" * width if column < 2 else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join([line(head), line(rule if markdown else ["-" * width for width in widths]), *map(line, rows)])


def number(value: float, digits: int = 4) -> str:
    """`value` with about `digits` significant ones and no exponent."""
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - whole)}f}"


def ratio(one: float, other: float) -> str:
    """one / other, or a dash when there is nothing to divide by."""
    return f"{one / other:.3f}" if other else "-"
