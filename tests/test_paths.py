import os
from pathlib import Path

import msgspec
import pytest

from engine import paths
from engine.build import PIN, Build, cpu_digest


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMARADA_HOME", str(tmp_path))
    monkeypatch.delenv("LLAMARADA_LIB", raising=False)


def library_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / paths.LIBRARY).touch()
    return folder


def cached(build: Build, age: int = 0) -> Path:
    folder = library_in(paths.home() / "libllama" / build.key)
    manifest = folder / "build.json"
    manifest.write_bytes(msgspec.json.encode(build))
    os.utime(manifest, (1_000_000 - age, 1_000_000 - age))
    return folder


def build(pin: str = PIN, source: str = PIN, variant: str = "native", cpu: str | None = None, args: str = "") -> Build:
    return Build(pin, source, variant, cpu_digest() if cpu is None else cpu, args)


@pytest.mark.parametrize(
    "variables, home",
    [
        ({"LLAMARADA_HOME": "/a"}, "/a"),
        ({"LLAMARADA_HOME": "", "XDG_CACHE_HOME": "/b"}, "/b/llamarada"),
        ({"LLAMARADA_HOME": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/llamarada"),
    ],
)
def test_home_follows_the_variables(variables: dict[str, str], home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert paths.home() == Path(home)


def test_library_comes_from_the_configuration_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = cached(build())
    assert paths.lib_dir() == built
    variable = library_in(tmp_path / "variable")
    monkeypatch.setenv("LLAMARADA_LIB", str(variable))
    assert paths.lib_dir() == variable
    configured = library_in(tmp_path / "configured")
    assert paths.lib_dir(str(configured)) == configured


def test_the_build_selected_last_is_taken() -> None:
    cached(build(), age=10)
    newest = cached(build(variant="portable", cpu=""))
    cached(build(args="-DGGML_CUDA=ON"), age=20)
    assert paths.lib_dir() == newest


@pytest.mark.parametrize("useless", [build(cpu="another"), build(pin="0.0.1")])
def test_a_build_for_another_cpu_or_version_is_passed_over(useless: Build) -> None:
    usable = cached(build(args="-DA=1"), age=10)
    cached(useless)
    assert paths.lib_dir() == usable


def test_a_half_written_build_is_passed_over() -> None:
    (cached(build()) / "build.json").write_text("{")
    with pytest.raises(FileNotFoundError, match="no libllama"):
        paths.lib_dir()


def test_a_missing_library_names_the_fix() -> None:
    with pytest.raises(FileNotFoundError, match=r"make setup.*LLAMARADA_LIB"):
        paths.lib_dir()


def test_a_folder_without_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"\[engine\] library: {tmp_path} holds no"):
        paths.lib_dir(str(tmp_path))


def test_every_build_that_differs_has_its_own_key() -> None:
    builds = [
        build(),
        build(cpu="another"),
        build(variant="portable", cpu=""),
        build(args="-DGGML_CUDA=ON"),
        build(source="b1234"),
        build(source="/some/tree"),
        build(source="/other/tree"),
    ]
    assert len({each.key for each in builds}) == len(builds)
    assert all("/" not in each.key for each in builds)


def test_model_paths_name_the_version() -> None:
    assert paths.model_path("smollm2").suffix == ".gguf"
    assert paths.PACKAGES["minilm"].version in paths.model_path("minilm").name
    with pytest.raises(ValueError, match="known: smollm2, minilm"):
        paths.model_path("nothing")
