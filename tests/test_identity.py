"""What counts as the same model."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.identity import file_digest, model_digest
from ipc.config import EngineSection

pytestmark = pytest.mark.usefixtures("lib")
SETTINGS = EngineSection(parallel=2)


def test_a_byte_anywhere_changes_the_digest_of_a_small_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    content = bytearray(range(256)) * 40
    file.write_bytes(content)
    before = file_digest(str(file))
    for position in (0, 5000, -1):
        content[position] ^= 1
        file.write_bytes(content)
        assert file_digest(str(file)) != before
        content[position] ^= 1


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"threads": 3}, True),
        ({"ctx_size": 512}, True),
        ({"cache_type_k": "q8_0"}, False),
        ({"rope_freq_base": 5.0}, False),
        ({"kv_unified": True}, False),
        ({"parallel": 3}, False),
        ({"kv_unified": True, "parallel": 3}, False),
    ],
)
def test_settings_that_change_kv_change_the_identity(tmp_path: Path, change: dict[str, object], same: bool) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"x" * 100)
    assert (model_digest(str(file), SETTINGS) == model_digest(str(file), replace(SETTINGS, **change))) is same


def test_the_number_of_slots_does_not_matter_with_one_pool(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"x" * 100)
    pooled = [EngineSection(parallel=n, kv_unified=True) for n in (1, 8)]
    assert model_digest(str(file), pooled[0]) == model_digest(str(file), pooled[1])


def test_every_part_of_a_split_model_counts(tmp_path: Path) -> None:
    parts = [tmp_path / f"model-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(b"x" * 100)
    before = model_digest(str(parts[0]), SETTINGS)
    parts[1].write_bytes(b"y" * 100)
    assert model_digest(str(parts[0]), SETTINGS) != before
