"""Writes the files that come from the option table: `python -m ipc.options`."""

from pathlib import Path

from ipc.options.pages import reference
from ipc.options.toml import explained

ROOT = Path(__file__).parents[2]
PAGES = {ROOT / "configs" / "one.toml": explained, ROOT / "docs" / "configuration.md": reference}


def main() -> None:
    """Write every page anew."""
    for path, text in PAGES.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
