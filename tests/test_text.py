"""Text leaves the engine in whole characters and without any part of a stop string."""

import time

from hypothesis import given
from hypothesis import strategies as st

from engine.text import IndentGuard, TextStream


def feed(stream: TextStream, pieces: list[bytes]) -> tuple[list[str], str | None]:
    """The emitted texts, the held-back rest included, and the stop string that was hit."""
    texts: list[str] = []
    for piece in pieces:
        emission = stream.feed(piece)
        texts.append(emission.text)
        if emission.stopped_by is not None:
            return texts, emission.stopped_by
    return [*texts, stream.finish()], None


def test_an_emoji_over_three_tokens_is_sent_whole() -> None:
    stream = TextStream([])
    emissions = [stream.feed(piece) for piece in (b"\xf0\x9f", b"\x98", b"\x80")]
    assert [(e.text, e.complete) for e in emissions] == [("", False), ("", False), ("😀", True)]


def test_a_character_cut_by_the_end_is_dropped() -> None:
    assert feed(TextStream([]), [b"a", b"\xf0\x9f"])[0] == ["a", "", ""]


def test_bytes_that_can_never_be_valid_become_replacement_characters() -> None:
    assert "".join(feed(TextStream([]), [b"a\xff", b"b"])[0]) == "a�b"


def test_a_stop_string_over_borders_is_cut_out() -> None:
    texts, stopped = feed(TextStream(["beta gamma"]), [b"alpha ", b"beta", b" ", b"gamma", b" delta"])
    assert ("".join(texts), stopped) == ("alpha ", "beta gamma")


def test_the_earliest_of_several_stops_wins() -> None:
    texts, stopped = feed(TextStream(["cd", "b"]), [b"abcd"])
    assert ("".join(texts), stopped) == ("a", "b")


def test_a_partial_stop_is_held_until_it_cannot_complete() -> None:
    stream = TextStream(["abab!"])
    assert stream.feed(b"xabab").text == "x"
    assert stream.feed(b"ab").text == "ab"
    assert stream.finish() == "abab"


def test_what_precedes_a_stop_in_the_same_token_is_sent() -> None:
    texts, stopped = feed(TextStream(["\n"]), [b"Mars", b"?\n"])
    assert ("".join(texts), stopped) == ("Mars?", "\n")


def test_empty_stop_strings_are_ignored() -> None:
    assert feed(TextStream([""]), [b"abc"]) == (["abc", ""], None)


TEXT = st.text(alphabet="ab é😀\n", max_size=30)


@given(TEXT, st.lists(st.text(alphabet="ab é😀", min_size=1, max_size=4), max_size=3), st.data())
def test_any_cutting_of_the_bytes_gives_the_same_text(text: str, stops: list[str], data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    texts, stopped = feed(TextStream(stops), pieces)
    joined = "".join(texts)
    if stopped is None:
        assert joined == text and not any(stop in text for stop in stops)
    else:
        assert text.startswith(joined + stopped)
        assert not any(stop in joined for stop in stops)


def test_an_under_indented_line_is_cut() -> None:
    guard = IndentGuard(2)
    assert guard.cut("  first\n    deep\n") is None
    assert guard.cut("  ok\n x") == 5


def test_a_blank_line_is_no_under_indented_line() -> None:
    assert IndentGuard(2).cut("a\n\n  b") is None


def test_an_indent_over_several_pieces_counts_together() -> None:
    guard = IndentGuard(3)
    assert [guard.cut(piece) for piece in ("a\n", " ", "  ", "b")] == [None] * 4
    assert [guard.cut(piece) for piece in ("\n", " ", "b")] == [None, None, 0]


def test_long_stop_strings_cost_no_more_than_short_ones() -> None:
    """Each token would otherwise cost their number times the square of their length."""
    words = [*("b" + "a" * 4000 + str(i) for i in range(200)), "a" * 4001]
    stream = TextStream(words)
    begin = time.process_time()
    assert "".join(stream.feed(b"aaaa").text for _ in range(1000)) == ""
    assert stream.finish() == "a" * 4000
    assert time.process_time() - begin < 2


@given(st.lists(st.text("ab", max_size=5), max_size=4), st.lists(st.text("ab", max_size=4), max_size=12))
def test_stop_strings_that_repeat_themselves(words: list[str], pieces: list[str]) -> None:
    """The text up to the first piece that completes a stop string, and what it may release before, found by search."""
    words, stream, sent, seen = [word for word in words if word], TextStream(words), "", ""
    for piece in pieces:
        emission = stream.feed(piece.encode())
        sent, seen = sent + emission.text, seen + piece
        starts = [at for word in words if (at := seen.find(word)) >= 0]
        if starts:
            assert emission.stopped_by and sent == seen[: min(starts)]
            return
        held = max((n for word in words for n in range(len(word)) if seen.endswith(word[:n])), default=0)
        assert emission.stopped_by is None and sent == seen[: len(seen) - held]
