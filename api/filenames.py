"""Which file names of clients are safe to use; `spec/security.md` §5."""

FORBIDDEN = frozenset(':*?"<>|\uff0e\u2215\u2216\ufffd\ufeff')
SEPARATORS = frozenset("/\\")
LONGEST = 255  # bytes


def is_safe(name: str, *, folders: bool = False) -> bool:
    """Whether `name` can only be a file in (or, with `folders`, below) the folder it will be joined to."""
    return (
        _is_short_text(name)
        and not any(_is_forbidden(letter) for letter in name)
        and (folders or not SEPARATORS & set(name))
        and not name.startswith(" ")
        and not name.endswith((" ", "."))
        and ".." not in name
    )


def _is_short_text(name: str) -> bool:
    try:
        return 0 < len(name.encode()) <= LONGEST
    except UnicodeEncodeError:  # a surrogate
        return False


def _is_forbidden(letter: str) -> bool:
    return letter in FORBIDDEN or ord(letter) < 0x20 or 0x7F <= ord(letter) <= 0x9F
