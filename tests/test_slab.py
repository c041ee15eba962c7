"""Rows: who owns them, when they may be reused, and what a reader is told."""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ipc.messages import RowRef
from ipc.slab import Slab, SlabError, StaleRow, State

VECTOR = np.arange(10, dtype=np.float32)


@pytest.fixture
def slab(tmp_path: Path) -> Iterator[Slab]:
    slab = Slab.create(str(tmp_path / "rows.slab"), n_rows=3, row_floats=10)
    yield slab
    slab.close()


@pytest.fixture
def reader(slab: Slab) -> Iterator[Slab]:
    reader = Slab.attach(slab.path)
    yield reader
    reader.close()


def test_a_reader_gets_what_was_put(slab: Slab, reader: Slab) -> None:
    ref = slab.put(VECTOR, b"a")
    assert ref.generation and not ref.inline
    assert reader.get(ref).tolist() == VECTOR.tolist()


def test_a_short_vector_keeps_its_length(slab: Slab, reader: Slab) -> None:
    assert reader.get(slab.put(VECTOR[:4], b"a")).tolist() == [0, 1, 2, 3]


def test_what_was_read_is_a_copy(slab: Slab, reader: Slab) -> None:
    ref = slab.put(VECTOR, b"a")
    copy = reader.get(ref)
    slab.free(ref.row, ref.generation)
    slab.put(VECTOR + 1, b"a")
    assert copy.tolist() == VECTOR.tolist()


def test_without_a_free_row_vectors_travel_inline(slab: Slab, reader: Slab) -> None:
    refs = [slab.put(VECTOR, b"a") for _ in range(4)]
    assert [bool(ref.inline) for ref in refs] == [False, False, False, True]
    assert reader.get(refs[3]).tolist() == VECTOR.tolist()


def test_a_vector_longer_than_a_row_travels_inline(slab: Slab, reader: Slab) -> None:
    ref = slab.put(np.ones(11), b"a")
    assert ref.generation == 0
    assert reader.get(ref).tolist() == [1] * 11


def test_an_owner_that_cannot_map_gets_all_inline(slab: Slab) -> None:
    slab.set_inline(b"far", True)
    assert slab.put(VECTOR, b"far").inline and not slab.put(VECTOR, b"near").inline


def test_a_freed_row_is_used_again_in_a_new_generation(slab: Slab) -> None:
    old = slab.put(VECTOR, b"a")
    slab.free(old.row, old.generation)
    new = slab.put(VECTOR, b"a")
    assert (new.row, new.generation) == (old.row, old.generation + 1)


def test_reading_a_reused_row_raises(slab: Slab, reader: Slab) -> None:
    old = slab.put(VECTOR, b"a")
    slab.free(old.row, old.generation)
    slab.put(VECTOR, b"b")
    with pytest.raises(StaleRow, match="reused"):
        reader.get(old)


def test_free_ignores_what_is_not_held(slab: Slab) -> None:
    old = slab.put(VECTOR, b"a")
    slab.free(old.row, old.generation)
    new = slab.put(VECTOR, b"b")
    for row, generation in [(old.row, old.generation), (99, 1), (-1, 1), (new.row + 1, 0)]:
        slab.free(row, generation)
    assert slab.n_used == 1
    slab.free(new.row, new.generation)
    slab.free(new.row, new.generation)
    assert slab.n_used == 0
    assert not slab.put(VECTOR, b"a").inline


def test_rows_of_a_gone_owner_free_themselves(slab: Slab) -> None:
    for owner in (b"a", b"b", b"a"):
        slab.put(VECTOR, owner)
    slab.free_owner(b"a")
    assert slab.n_used == 1 and slab.owners() == {b"b"}


def test_generations_of_another_boot_do_not_match(slab: Slab) -> None:
    old = slab.put(VECTOR, b"a")
    restarted = Slab.create(slab.path, n_rows=3, row_floats=10)
    assert restarted.put(VECTOR, b"a").generation != old.generation
    with pytest.raises(StaleRow):
        restarted.get(old)
    restarted.close()


def test_a_row_outside_the_file_is_refused(reader: Slab) -> None:
    with pytest.raises(SlabError, match="row 3 of 3"):
        reader.get(RowRef(3, 1))


def test_the_header_is_shared(slab: Slab, reader: Slab) -> None:
    assert reader.state is State.LOADING and reader.pid == os.getpid()
    slab.state, slab.steps, slab.load_progress, slab.active = State.READY, 2**40, 0.5, 3
    assert (reader.state, reader.steps, reader.load_progress, reader.active) == (State.READY, 2**40, 0.5, 3)


def test_a_beat_makes_the_slab_young(slab: Slab, reader: Slab, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    slab.beat()
    assert reader.age() == 0
    monkeypatch.setattr(time, "monotonic_ns", lambda: now + 7_000_000_000)
    assert reader.age() == 7


def test_only_its_user_may_open_the_file(slab: Slab) -> None:
    assert stat.S_IMODE(os.stat(slab.path).st_mode) == 0o600


def test_the_owner_removes_the_file_and_readers_keep_their_view(tmp_path: Path) -> None:
    slab = Slab.create(str(tmp_path / "x.slab"), 1, 10)
    reader = Slab.attach(slab.path)
    ref = slab.put(VECTOR, b"a")
    slab.close()
    assert not os.path.exists(reader.path)
    assert reader.get(ref).tolist() == VECTOR.tolist()
    reader.close()


def test_a_successors_file_is_not_removed(slab: Slab) -> None:
    old = Slab.create(slab.path, 1, 10)
    new = Slab.create(slab.path, 1, 10)
    old.close()
    assert os.path.exists(new.path)
    new.close()


def test_a_stale_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.slab"
    path.write_bytes(b"left over")
    slab = Slab.create(str(path), 1, 10)
    assert Slab.attach(str(path)).n_rows == 1
    slab.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"x" * 127, b"x" * 4096], ids=["empty", "short", "garbage"])
def test_garbage_is_not_attached(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.slab"
    path.write_bytes(content)
    with pytest.raises(SlabError, match=r"x\.slab: (too short|not a slab)"):
        Slab.attach(str(path))


def test_a_cut_file_is_not_attached(slab: Slab, tmp_path: Path) -> None:
    whole = Path(slab.path).read_bytes()
    (tmp_path / "cut.slab").write_bytes(whole[:-1])
    (tmp_path / "other.slab").write_bytes(whole[:8] + b"\x63" + whole[9:])
    with pytest.raises(SlabError, match="damaged"):
        Slab.attach(str(tmp_path / "cut.slab"))
    with pytest.raises(SlabError, match="version 99"):
        Slab.attach(str(tmp_path / "other.slab"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SlabError, match=r"gone\.slab: No such file"):
        Slab.attach(str(tmp_path / "gone.slab"))


def test_with_little_memory_there_are_fewer_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reserve(file: int, offset: int, size: int) -> None:
        if size > 4096:
            raise OSError(28, "No space left on device")
        os.ftruncate(file, size)

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    slab = Slab.create(str(tmp_path / "x.slab"), n_rows=100, row_floats=64)
    assert 0 < slab.n_rows < 16 and Slab.attach(slab.path).n_rows == slab.n_rows
    slab.close()


def test_a_slab_without_rows_still_has_a_header(tmp_path: Path) -> None:
    slab = Slab.create(str(tmp_path / "x.slab"), 0, 0)
    assert slab.put(VECTOR, b"a").inline
    assert Slab.attach(slab.path).state is State.LOADING
    slab.close()


def test_a_row_starts_at_a_multiple_of_64(slab: Slab) -> None:
    content = Path(slab.path).read_bytes()
    rows_at, stride = np.frombuffer(content[72:88], "<u8")
    assert rows_at % 64 == stride % 64 == 0
