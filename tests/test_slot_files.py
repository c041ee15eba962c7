"""Slots saved to files and restored: on a model in plain Python, and in a file's every part."""

import time
from pathlib import Path

import numpy as np
import pytest

from api.filenames import is_safe
from engine import slotfile
from engine.regime import PLAIN
from engine.slotfile import SlotFile, SlotFileError, unpack
from engine.snapshot import Checkpoint, Snapshot
from ipc.messages import Failure, SlotAction, SlotReply
from tests.fake_context import continuation
from tests.step_engine import StepEngine
from tests.test_cache_policy import prompt
from tests.test_caches import KINDS, MODES, run
from tests.test_engine import check_books

pytestmark = pytest.mark.usefixtures("lib")


def act(engine: StepEngine, action: str, slot: int = 0, name: str = "a.bin") -> SlotReply | Failure:
    """Send an action, wait for its answer."""
    sent = engine.server.sent[b"actions"]
    n = len(sent)
    engine.server.incoming.append((b"actions", SlotAction(n, slot, action, name)))
    for _ in range(2000):
        engine.step()
        if len(sent) > n:
            (reply,) = sent[n:]
            assert isinstance(reply, SlotReply | Failure) and reply.id == n
            return reply
        time.sleep(0.001)  # the file is read on another thread, while a running sequence goes on
    raise AssertionError("no answer")


@MODES
@KINDS
def test_a_saved_slot_comes_back(tmp_path: Path, unified: bool, kind: dict) -> None:
    engine = StepEngine(n_ctx=512, unified=unified, folder=str(tmp_path), **kind)
    run(engine, prompt(1, 150))
    saved = act(engine, "save")
    assert isinstance(saved, SlotReply) and saved.n_tokens == engine.slots[0].n_past == 153
    assert saved.n_bytes == (tmp_path / "a.bin").stat().st_size
    assert act(engine, "erase").n_tokens == 153  # type: ignore[union-attr]
    assert engine.slots[0].n_past == 0
    restored = act(engine, "restore")
    assert isinstance(restored, SlotReply) and (restored.n_tokens, restored.n_bytes) == (153, saved.n_bytes)
    check_books(engine)
    assert run(engine, [*prompt(1, 150), 8, 8]) >= 146


def test_a_slot_is_restored_in_another_process(tmp_path: Path) -> None:
    engine = StepEngine(n_ctx=512, folder=str(tmp_path))
    run(engine, prompt(1, 150))
    act(engine, "save")
    other = StepEngine(n_ctx=512, folder=str(tmp_path))
    act(other, "restore", slot=1)
    assert run(other, [*prompt(1, 150), 5]) == 150


def test_an_action_waits_for_its_slot(tmp_path: Path) -> None:
    engine = StepEngine(n_slots=1, n_ctx=512, folder=str(tmp_path))
    task = engine.submit([1, 2, 3], 30)
    engine.step(3)
    reply = act(engine, "save")
    assert isinstance(reply, SlotReply) and engine.final(task).reason == "limit"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda content: content[:40], slotfile.NO_SPACE),
        (lambda content: b"x" + content[1:], slotfile.NO_SPACE),
        (lambda content: content[:-60] + b"x" + content[-59:], slotfile.NO_SPACE),
        (lambda content: content + b"x", slotfile.NO_SPACE),
        (lambda content: b"", slotfile.NO_SPACE),
    ],
    ids=["short", "magic", "data", "longer", "empty"],
)
def test_a_failed_restore_leaves_the_slot_as_it_was(tmp_path: Path, change, text: str) -> None:  # type: ignore[no-untyped-def]
    engine = StepEngine(n_ctx=512, folder=str(tmp_path))
    run(engine, prompt(1, 150))
    act(engine, "save")
    run(engine, prompt(2, 100), slot=0)
    file = tmp_path / "a.bin"
    file.write_bytes(change(file.read_bytes()))
    reply = act(engine, "restore")
    assert isinstance(reply, Failure)
    assert (reply.error.code, reply.error.message) == (400, f"Unable to restore slot: {text}")
    check_books(engine)
    assert run(engine, prompt(2, 100), slot=0) == 99


def test_a_state_that_libllama_refuses_leaves_the_slot_as_it_was(tmp_path: Path) -> None:
    engine = StepEngine(n_ctx=512, folder=str(tmp_path))
    run(engine, prompt(1, 150))
    act(engine, "save")
    run(engine, prompt(2, 100), slot=0)
    accepts, refusals = engine.context.state_set, [False]
    engine.context.state_set = lambda *args: refusals.pop() if refusals else accepts(*args)  # type: ignore[method-assign]
    assert isinstance(act(engine, "restore"), Failure)
    check_books(engine)
    assert run(engine, prompt(2, 100), slot=0) == 99


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    engine = StepEngine(n_slots=1, n_ctx=512, folder=str(tmp_path))
    run(engine, prompt(1, 150))
    act(engine, "save")
    small = StepEngine(n_slots=1, n_ctx=100, folder=str(tmp_path))
    reply = act(small, "restore")
    assert isinstance(reply, Failure) and reply.error.message.endswith(slotfile.DOES_NOT_FIT)


def test_idle_slots_make_room_but_running_ones_do_not(tmp_path: Path) -> None:
    engine = StepEngine(n_slots=2, n_ctx=300, folder=str(tmp_path), n_host_bytes=1 << 20)
    run(engine, prompt(1, 200))
    act(engine, "save")
    run(engine, prompt(2, 80), slot=1)
    assert isinstance(act(engine, "restore"), SlotReply)
    task = engine.submit(prompt(3, 150), 60, slot=1)
    engine.step(20)
    reply = act(engine, "restore")
    assert isinstance(reply, Failure) and reply.error.message.endswith(slotfile.NO_SPACE)
    engine.run()
    assert engine.tokens(task) == continuation(prompt(3, 150), 60)


@pytest.mark.parametrize(
    ("action", "slot", "name", "code", "text"),
    [
        ("save", 9, "a", 400, "Invalid slot ID"),
        ("copy", 0, "a", 400, "Invalid action"),
        ("save", 0, "", 400, "Invalid filename"),
        ("save", 0, "/etc/passwd", 400, "Invalid filename"),
        ("save", 0, "../a", 400, "Invalid filename"),
        ("restore", 0, "missing", 400, f"Unable to restore slot: {slotfile.NO_SPACE}"),
    ],
)
def test_bad_actions_are_refused(tmp_path: Path, action: str, slot: int, name: str, code: int, text: str) -> None:
    engine = StepEngine(folder=str(tmp_path))
    reply = act(engine, action, slot, name)
    assert isinstance(reply, Failure) and (reply.error.code, reply.error.message) == (code, text)


def test_without_a_folder_slots_are_not_saved() -> None:
    reply = act(StepEngine(), "save")
    assert isinstance(reply, Failure) and reply.error.code == 501


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    reply = act(StepEngine(folder=str(tmp_path / "none")), "save")
    assert isinstance(reply, Failure) and (reply.error.code, reply.error.message) == (500, "Unable to save slot")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([-1], slotfile.ENDS_EARLY),
        ([-1, 2, 0, 0], slotfile.UNKNOWN_VERSION),
        ([-1, 1, 3, 7, 7], slotfile.ENDS_EARLY),
        ([-1, 1, -3, 0], slotfile.ENDS_EARLY),
        ([-1, 1, 1, 7, 1, 0], slotfile.HAS_MEDIA),
        ([-1, 1, 1, 7, 0, 5], slotfile.TRAILING),
    ],
)
def test_words_that_are_no_token_list_are_refused(words: list[int], text: str) -> None:
    with pytest.raises(SlotFileError, match=text):
        unpack(np.array(words, np.int32))


def test_plain_and_packed_token_lists_are_read() -> None:
    assert unpack(np.array([5, 6, 7], np.int32)).tolist() == [5, 6, 7]
    assert unpack(np.array([-1, 1, 2, 5, 6, 0], np.int32)).tolist() == [5, 6]


def test_tokens_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    snapshot = Snapshot(np.array([1, 99], np.int32), PLAIN, np.zeros(10, np.uint8))
    slotfile.write(tmp_path / "a.bin", SlotFile(snapshot, "0" * 32, (), 2))
    reply = act(StepEngine(folder=str(tmp_path)), "restore")
    assert isinstance(reply, Failure) and reply.error.message.endswith(slotfile.INVALID_TOKENS)


def test_another_models_file_is_refused(tmp_path: Path) -> None:
    snapshot = Snapshot(np.array([1, 2], np.int32), PLAIN, np.zeros(10, np.uint8))
    slotfile.write(tmp_path / "a.bin", SlotFile(snapshot, "1" * 32, (), 2))
    reply = act(StepEngine(folder=str(tmp_path)), "restore")
    assert isinstance(reply, Failure) and reply.error.message.endswith(slotfile.NO_SPACE)


def test_a_file_holds_what_was_put_into_it(tmp_path: Path) -> None:
    checkpoints = (Checkpoint(1, np.arange(5, dtype=np.uint8)),)
    snapshot = Snapshot(np.array([1, 2, 3], np.int32), ((), 7), np.arange(9, dtype=np.uint8), checkpoints, False)
    n = slotfile.write(tmp_path / "a", SlotFile(snapshot, "id", (("ab", 0.5),), 2))
    file = slotfile.read(tmp_path / "a")
    assert (file.identity, file.adapters, file.n_exact, file.n_bytes) == ("id", (("ab", 0.5),), 2, n)
    assert file.snapshot.tokens.tolist() == [1, 2, 3] and not file.snapshot.divisible
    assert file.snapshot.state.tolist() == list(range(9)) and file.snapshot.adapters == ((), 7)
    assert [(c.n, c.data.tolist()) for c in file.snapshot.checkpoints] == [(1, list(range(5)))]
    head = np.frombuffer((tmp_path / "a").read_bytes()[:40], np.int32).tolist()
    assert head == [0x67677371, 4, 7, -1, 1, 3, 1, 2, 3, 0]


@pytest.mark.parametrize("name", ["a", "a.bin", "ä b.bin", "a" * 255, "-x", ".hidden"])
def test_plain_names_are_safe(name: str) -> None:
    assert is_safe(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a/b", "a\\b", "a..b", "a.", " a", "a ", "a\n", "a\x7f", "a\x85", "a:b", "a*"),
        *("a\ufeff", "a\ud800", "a" * 256, "ä" * 128, "\uff0e", "a\u2215b"),
    ],
)
def test_other_names_are_not(name: str) -> None:
    assert not is_safe(name)
