"""The binding on the real libllama and the demo model."""

import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from engine import library, llama
from engine.batch import Batch
from engine.context import Context
from engine.gguf import string
from engine.model import Model, ModelError
from engine.vocab import Vocab, utf8

PROMPT = "The capital of France is"
CONTINUATION = " Paris.\n\nThe United States"  # seven tokens

# ---- the library


def test_missing_library_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(library.LibraryError, match=r"libllama.*(build_llama\.sh|make setup)"):
        library.find(str(tmp_path))


def test_configured_folder_wins_over_the_environment(lib: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LLAMARADA_LIB", str(tmp_path))
    assert library.find(str(lib)) == lib


def test_broken_library_says_what_to_do(tmp_path: Path) -> None:
    broken = tmp_path / f"libllama{library.SUFFIX}"
    broken.write_bytes(b"not a library")
    with pytest.raises(library.LibraryError, match=r"cannot be loaded.*build_llama\.sh"):
        library.open_with_dependents(broken)


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("c++"), reason="needs a compiler for ELF files")
def test_dependents_are_taken_from_the_same_folder(tmp_path: Path) -> None:
    inner, outer = tmp_path / "libinner.so.1", tmp_path / "libouter.so"
    compiler = ["c++", "-shared", "-fPIC", "-x", "c++", "/dev/null", "-x", "none", "-Wl,--no-as-needed"]
    subprocess.run([*compiler, f"-Wl,-soname,{inner.name}", "-o", inner], check=True, timeout=60)
    subprocess.run([*compiler, inner, "-o", outer], check=True, timeout=60)
    hidden = inner.rename(tmp_path / "hidden")
    with pytest.raises(library.LibraryError, match=r"libinner\.so\.1.*build_llama\.sh"):
        library.open_with_dependents(outer)
    hidden.rename(inner)
    assert library.open_with_dependents(outer)


def test_second_library_is_refused(lib: Path, tmp_path: Path) -> None:
    (tmp_path / f"libllama{library.SUFFIX}").symlink_to(lib / f"libllama{library.SUFFIX}")
    with pytest.raises(library.LibraryError, match="already loaded"):
        library.load(str(tmp_path))


def test_function_called_before_the_load_says_so() -> None:
    code = "from engine import llama; llama.llama_version()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert "llama_version was called before" in run.stderr


def test_abort_inside_libllama_is_logged(lib: Path) -> None:
    code = f"""if True:
        import ctypes, logging
        from engine import library
        logging.basicConfig(level=logging.INFO)
        library.load({str(lib)!r})
        ctypes.CDLL({str(lib / f"libggml-base{library.SUFFIX}")!r}).ggml_abort(b"cache.cpp", 3, b"no cell")"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert run.returncode == -signal.SIGABRT
    assert "libllama aborts: cache.cpp:3: no cell" in run.stderr


def test_handle_of_another_kind_is_refused(model: Model) -> None:
    with pytest.raises(Exception, match="wrong type"):
        llama.llama_n_ctx(model.ptr)  # type: ignore[arg-type]
    assert not llama.Model()


def test_devices_are_listed(lib: Path) -> None:
    assert "CPU" in library.device_names()


# ---- its log


def test_log_lines_are_joined_and_levelled(caplog: pytest.LogCaptureFixture) -> None:
    sink = library.Log()
    with caplog.at_level(logging.DEBUG, "llama"):
        sink(llama.LogLevel.INFO, b"load: ", None)
        sink(llama.LogLevel.CONT, b"..", None)
        sink(llama.LogLevel.CONT, b"..\n", None)
        sink(llama.LogLevel.WARN, b"two\nlines\n", None)
        sink(llama.LogLevel.ERROR, b"unfinished", None)
        sink(llama.LogLevel.DEBUG, b"caf\xc3\xa9 \xff\n", None)
        sink(llama.LogLevel.INFO, b"\n", None)
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.INFO, "load: ...."),
        (logging.WARNING, "two"),
        (logging.WARNING, "lines"),
        (logging.ERROR, "unfinished"),
        (logging.DEBUG, "café \ufffd"),
    ]


def test_errors_are_collected() -> None:
    sink = library.Log()
    with sink.collect() as errors:
        sink(llama.LogLevel.INFO, b"fine\n", None)
        sink(llama.LogLevel.ERROR, b"bad", None)
        sink(llama.LogLevel.CONT, b" thing\n", None)
        sink(llama.LogLevel.ERROR, b"unfinished", None)
    sink(llama.LogLevel.ERROR, b"later\n", None)
    assert errors == ["bad thing", "unfinished"]


def test_libllama_logs_through_python(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "llama"), closing(Context(model, n_ctx=64)):
        pass
    assert any("n_ctx" in record.getMessage() for record in caplog.records)


# ---- the model file


def test_missing_file_is_named(lib: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.gguf: no such file"):
        Model.load(tmp_path / "nothing.gguf")


@pytest.mark.parametrize("load", [Model.load, Vocab.load])
def test_file_that_is_no_model_gives_the_reason(load, lib: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF or not, here I come")
    with pytest.raises(ModelError, match=r"bad\.gguf: .*(magic|version|failed|invalid)"):
        load(bad)


def test_truncated_model_gives_the_reason(lib: Path, model_path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with model_path.open("rb") as whole:
        cut.write_bytes(whole.read(4_000_000))
    with pytest.raises(ModelError, match="not within the file bounds"):
        Model.load(cut)


def test_load_tells_its_progress_and_takes_overrides(lib: Path, model_path: Path) -> None:
    seen: list[float] = []
    overrides = {"tokenizer.ggml.add_bos_token": True, "llama.context_length": 1234, "general.name": "renamed"}
    mode = llama.LoadMode.NONE
    with closing(Model.load(model_path, progress=seen.append, kv_overrides=overrides, load_mode=mode)) as changed:
        assert changed.vocab.add_bos
        assert changed.n_ctx_train == 1234
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_unknown_parameter_is_refused(lib: Path, model: Model, model_path: Path) -> None:
    with pytest.raises(TypeError, match="'n_gpus'"):
        Model.load(model_path, n_gpus=3)
    with pytest.raises(TypeError, match="'n_context'"):
        Context(model, n_context=3)
    with pytest.raises(ModelError, match="type_k: 'q9' is none of f32, f16"):
        Context(model, type_k="q9")


def test_model_describes_itself(model: Model, model_path: Path) -> None:
    info = model.info()
    assert (info.architecture, info.n_vocab, info.n_ctx_train, info.n_embd) == ("llama", 49152, 8192, 576)
    assert (info.path, info.n_params, info.ftype) == (str(model_path), 134515008, "Q4_1")
    assert model.meta["tokenizer.ggml.model"] == "gpt2"


def test_long_strings_are_read_whole() -> None:
    text = "x" * 1000

    def write(buffer, size: int) -> int:
        buffer.value = text.encode()[: size - 1]
        return len(text)

    assert string(write) == text


# ---- the vocabulary


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        ("Hello, world!", [19556, 28, 905, 17]),
        ("😀", [10813, 242, 218]),
        ("a\0b", [81, 190, 82]),
        ("<|im_start|>user\n", [1, 4093, 198]),
    ],
)
def test_text_has_its_known_tokens(vocab: Vocab, text: str, tokens: list[int]) -> None:
    assert vocab.encode(text).tolist() == tokens
    assert vocab.decode(tokens).decode() == text


def test_control_tokens_can_be_plain_text(vocab: Vocab) -> None:
    assert 1 not in vocab.encode("<|im_start|>", parse_special=False)
    assert vocab.decode(vocab.encode("<|im_start|>", parse_special=False)) == b"<|im_start|>"
    assert vocab.piece(1) == b""
    assert vocab.piece(1, special=True) == b"<|im_start|>"


def test_surrogates_become_valid_text(vocab: Vocab) -> None:
    assert utf8("\ud83d\ude00") == "😀".encode()
    assert utf8("a\ud83db") == "a\ufffdb".encode()
    assert vocab.decode(vocab.encode("x\udc00")).decode() == "x\ufffd"


def test_large_text_is_encoded_whole(vocab: Vocab) -> None:
    text = "tokens are counted one by one, " * 20_000
    assert vocab.decode(vocab.encode(text)).decode() == text


def test_buffer_grows_when_a_token_list_outgrows_the_guess(vocab: Vocab, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = vocab.encode(PROMPT).tolist()
    empty = np.empty
    monkeypatch.setattr("engine.vocab.np.empty", lambda n, kind: empty(2 if n == len(PROMPT) + 8 else n, kind))
    assert vocab.encode(PROMPT).tolist() == wanted


@pytest.mark.parametrize("special", [False, True])
def test_piece_table_matches_the_single_pieces(vocab: Vocab, special: bool) -> None:
    pieces = vocab.pieces(special)
    assert len(pieces) == vocab.n_tokens
    buffer = np.zeros(512, np.uint8)
    for token in (0, 1, 17, 198, 10813, 49151):
        n = llama.llama_token_to_piece(vocab.ptr, token, buffer.ctypes.data, 512, 0, special)
        assert buffer[:n].tobytes() == pieces[token]


def test_piece_table_grows(vocab: Vocab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.vocab.PIECE_BYTES", 0)
    assert vocab._read_pieces(True) == vocab.pieces(True)


def test_special_tokens_are_known(vocab: Vocab) -> None:
    assert (vocab.bos, vocab.eos, vocab.eot, vocab.nl, vocab.pad) == (1, 2, 0, 198, 2)
    assert vocab.eog == {0, 2, 4}
    assert vocab.is_eog(2)
    assert not vocab.is_eog(3)
    assert vocab.fim_pre is None
    assert {0, 1, 2} <= vocab.control
    assert vocab.suppress == []
    assert not vocab.add_bos


def test_vocabulary_loads_alone(lib: Path, model_path: Path, vocab: Vocab) -> None:
    with closing(Vocab.load(model_path)) as alone:
        assert alone.encode(PROMPT).tolist() == vocab.encode(PROMPT).tolist()
        assert alone.meta["general.architecture"] == "llama"
        assert "<|im_start|>" in (alone.chat_template() or "")
        assert alone.chat_template("tool_use") is None


# ---- decoding


@pytest.fixture(scope="module", params=[True, False], ids=["unified", "streams"])
def shared_context(model: Model, request: pytest.FixtureRequest) -> Iterator[Context]:
    sizes = {"n_ctx": 1024, "n_batch": 256, "n_ubatch": 128, "n_seq_max": 4}
    with closing(Context(model, kv_unified=request.param, n_threads=1, n_threads_batch=1, **sizes)) as made:
        yield made


@pytest.fixture
def context(shared_context: Context) -> Context:
    """A context with empty memory; tests run on both kinds."""
    shared_context.clear()
    return shared_context


def read(context: Context, text: str, seq: int = 0, pos: int = 0) -> int:
    """Decode `text` into `seq`; returns the most likely next token."""
    batch = Batch(context.n_batch)
    tokens = context.model.vocab.encode(text)
    row = batch.add(tokens, pos, seq, "last") + len(tokens) - 1
    assert context.decode(batch) == 0
    return int(context.logits(row).argmax())


def generate(context: Context, token: int, seq: int, n: int) -> str:
    """Append `token` and the most likely ones after it to `seq`, `n` together, and return their text."""
    batch, tokens = Batch(1), [token]
    while len(tokens) < n:
        batch.clear()
        batch.add_token(tokens[-1], context.seq_pos_max(seq) + 1, seq)
        assert context.decode(batch) == 0
        tokens.append(int(context.logits(0).argmax()))
    return context.model.vocab.decode(tokens).decode()


def test_greedy_continuation_is_the_known_one(context: Context) -> None:
    assert generate(context, read(context, PROMPT), 0, 7) == CONTINUATION


def test_sequences_in_one_batch_do_not_mix(context: Context) -> None:
    tokens = context.model.vocab.encode(PROMPT)
    other = context.model.vocab.encode("One, two, three,")
    batch = Batch(256)
    rows = [batch.add(t, 0, seq, "last") + len(t) - 1 for seq, t in enumerate((tokens, other, tokens))]
    assert context.decode(batch) == 0
    texts = [context.model.vocab.piece(int(context.logits(row).argmax())) for row in rows]
    assert texts == [b" Paris", b" four", b" Paris"]


def test_every_row_can_have_logits(context: Context) -> None:
    tokens = context.model.vocab.encode(PROMPT)
    batch = Batch(256)
    batch.add(tokens, 0, 0, "all")
    assert context.decode(batch) == 0
    rows = np.stack([context.logits(i) for i in range(len(tokens))])
    assert rows.shape == (5, 49152)
    assert np.isfinite(rows).all()
    assert len(np.unique(rows[:, 0])) == 5


def test_row_without_output_is_refused(context: Context) -> None:
    batch = Batch(256)
    batch.add(context.model.vocab.encode(PROMPT), 0, 0, "last")
    assert context.decode(batch) == 0
    with pytest.raises(IndexError, match="no output for 0"):
        context.logits(0)


def test_logits_are_a_view_of_the_latest_decode(context: Context) -> None:
    read(context, PROMPT)
    first = context.logits(4)
    kept = first.copy()
    read(context, PROMPT, seq=1)
    assert context.logits(4) is first
    np.testing.assert_allclose(first, kept, atol=0.5)


def test_batch_larger_than_the_context_takes_is_refused(context: Context) -> None:
    batch = Batch(257)
    batch.add(np.zeros(257, np.int32), 0, 0)
    with pytest.raises(ValueError, match="at most 256"):
        context.decode(batch)


def test_batch_that_may_not_be_split_is_limited_to_a_microbatch(context: Context) -> None:
    batch = Batch(200)
    batch.add(np.zeros(200, np.int32), 0, 0)
    context.set_causal(False)
    with pytest.raises(ValueError, match="at most 128"):
        context.decode(batch)
    context.set_causal(True)
    assert context.decode(batch) == 0


def test_full_memory_is_reported_and_changes_nothing(model: Model) -> None:
    with closing(Context(model, n_ctx=256, n_batch=256, n_threads=1, n_threads_batch=1)) as context:
        batch = Batch(context.n_ctx)
        batch.add(np.full(256, 81, np.int32), 0, 0)
        assert context.decode(batch) == 0
        batch.clear()
        batch.add_token(81, 256, 0)
        assert context.decode(batch) == 1
        assert context.seq_pos_max(0) == 255


def test_invalid_batch_is_reported(context: Context) -> None:
    batch = Batch(4)
    assert context.decode(batch) == -1
    batch.add_token(81, 5, 0)
    assert context.decode(batch) == 0
    batch.clear()
    batch.add_token(81, 3, 0)  # earlier than what is held
    assert context.decode(batch) == -1


def test_part_of_a_batch_can_be_decoded(context: Context) -> None:
    tokens = context.model.vocab.encode(PROMPT)
    batch = Batch(16)
    batch.add(tokens, 0, 0, "last")
    assert context.decode(batch.part(0, 2)) == 0
    assert context.decode(batch.part(2, 3)) == 0
    assert context.model.vocab.piece(int(context.logits(2).argmax())) == b" Paris"


# ---- memory


def test_prefix_can_be_copied_and_continued(context: Context) -> None:
    token = read(context, PROMPT)
    context.seq_cp(0, 1, 0, 5)
    assert (context.seq_pos_min(1), context.seq_pos_max(1)) == (0, 4)
    assert generate(context, token, 1, 7) == CONTINUATION
    assert context.seq_pos_max(0) == 4


def test_part_of_a_sequence_can_be_copied(context: Context) -> None:
    read(context, PROMPT + " Lyon, and that is wrong")
    context.seq_cp(0, 2, 0, 4)
    assert context.seq_pos_max(2) == 3
    next_token = read(context, " is", seq=2, pos=4)
    assert context.model.vocab.piece(next_token) == b" Paris"


def test_tail_can_be_cut_and_replaced(context: Context) -> None:
    read(context, PROMPT + " Lyon, and that is wrong")
    assert context.seq_rm(0, 4, -1)
    assert context.seq_pos_max(0) == 3
    assert context.model.vocab.piece(read(context, " is", pos=4)) == b" Paris"


def test_removing_one_sequence_leaves_its_sharer(context: Context) -> None:
    token = read(context, PROMPT)
    context.seq_cp(0, 1, -1, -1)
    context.seq_rm(0, -1, -1)
    assert context.seq_pos_max(0) == -1
    assert generate(context, token, 1, 7) == CONTINUATION


def test_shifted_sequence_reads_like_the_unshifted_one(context: Context) -> None:
    assert context.can_shift
    text, dropped = "Nobody counts: one two three four five six seven", 3
    for seq in (0, 1):
        read(context, text, seq)
        context.seq_rm(seq, 0, dropped)
    end = context.seq_pos_max(0) + 1
    context.seq_add(1, dropped, -1, -dropped)
    assert (context.seq_pos_min(1), context.seq_pos_max(1)) == (0, end - dropped - 1)
    read(context, " eight", seq=0, pos=end)
    plain = context.logits(0).copy()
    read(context, " eight", seq=1, pos=end - dropped)
    # what counts is how far apart positions are; the small model rounds a lot
    assert np.corrcoef(context.logits(0), plain)[0, 1] > 0.998


# ---- saved state


def test_state_moves_to_another_sequence(context: Context) -> None:
    token = read(context, PROMPT)
    state = context.state_get(0)
    assert len(state) == context.state_size(0)
    context.clear()
    assert context.state_set(3, state)
    assert context.seq_pos_max(3) == 4
    assert generate(context, token, 3, 7) == CONTINUATION


def test_state_survives_as_bytes(context: Context) -> None:
    token = read(context, PROMPT)
    state = context.state_get(0).tobytes()
    assert context.state_set(1, state)
    assert generate(context, token, 1, 7) == CONTINUATION


def test_damaged_state_is_refused(context: Context) -> None:
    read(context, PROMPT)
    state = context.state_get(0)
    assert not context.state_set(1, state[: len(state) // 2])
    assert context.seq_pos_max(1) == -1


def test_state_of_a_fresh_copy_is_the_original(context: Context) -> None:
    token = read(context, PROMPT)
    context.seq_cp(0, 1, 0, 5)
    state = context.state_get(1)
    context.clear()
    assert context.state_set(2, state)
    assert generate(context, token, 2, 7) == CONTINUATION


def test_state_of_a_fresh_copy_is_right_when_every_sequence_is_in_use(context: Context) -> None:
    token = read(context, PROMPT)
    for seq in (1, 2, 3):
        read(context, "One, two, three,", seq)
    context.seq_rm(1, -1, -1)
    context.seq_cp(0, 1, 0, 5)
    state = context.state_get(1)
    assert context.seq_pos_max(1) == 4
    assert context.state_set(2, state)
    assert generate(context, token, 2, 7) == CONTINUATION


def test_restored_state_is_not_overwritten_by_an_earlier_copy(context: Context) -> None:
    token = read(context, PROMPT)
    state = context.state_get(0)
    read(context, "One, two, three, four, five, six", seq=1)
    context.seq_cp(1, 2, -1, -1)
    context.seq_rm(2, -1, -1)
    assert context.state_set(2, state)
    assert generate(context, token, 2, 7) == CONTINUATION


def test_restoring_over_the_source_of_a_copy_spares_the_copy(context: Context) -> None:
    read(context, "One, two, three, four, five, six", seq=1)
    other = context.state_get(1)
    token = read(context, PROMPT)
    context.seq_cp(0, 2, 0, 5)
    assert context.state_set(0, other)
    assert generate(context, token, 2, 7) == CONTINUATION


# ---- the batch alone


def test_batch_rows_are_filled_in_order() -> None:
    batch = Batch(8)
    assert batch.add(np.array([5, 6, 7], np.int32), 10, 2, "last") == 0
    assert batch.add_token(9, 4, 1, output=False) == 3
    assert batch.add(np.array([8], np.int32), 0, 0, True) == 4
    assert (batch.n_tokens, batch.room) == (5, 3)
    assert batch.tokens[:5].tolist() == [5, 6, 7, 9, 8]
    assert batch.positions[:5].tolist() == [10, 11, 12, 4, 0]
    assert batch.sequences[:5].tolist() == [2, 2, 2, 1, 0]
    assert batch.outputs[:5].tolist() == [0, 0, 1, 0, 1]
    batch.clear()
    assert (batch.n_tokens, batch.room) == (0, 8)


def test_full_batch_refuses_more() -> None:
    batch = Batch(2)
    with pytest.raises(ValueError, match="3 tokens do not fit in the 2 rows left"):
        batch.add(np.zeros(3, np.int32), 0, 0)
    batch.add(np.zeros(2, np.int32), 0, 0)
    with pytest.raises(ValueError, match="1 token does not fit"):
        batch.add_token(1, 2, 0)
