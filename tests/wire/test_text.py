import msgspec
import pytest

from phalanx.wire import Hello, Standing, decode
from phalanx.wire.text import printable

NASTY = "\x1b]0;owned\x07\x00\x7f\x9b31m\u202e\r\n\t"


def test_control_characters_become_visible_and_the_length_stays():
    shown = printable(NASTY)

    assert shown.isprintable()
    assert len(shown) == len(NASTY)
    assert shown.startswith("\N{SYMBOL FOR ESCAPE}]0;owned\N{SYMBOL FOR BELL}\N{SYMBOL FOR NULL}\N{SYMBOL FOR DELETE}")


def test_tabs_and_lines_that_are_indented_stay_where_people_read_several_lines():
    assert printable("a\n    \tb\n      c\r", keep_lines=True) == "a\n    \tb\n      c\N{SYMBOL FOR CARRIAGE RETURN}"


@pytest.mark.parametrize(
    "text", ["a\nphalanx: b", "a\n   b", "a\n\tb", "a\n", "\n\n    b", "a\n\u00a0   b", "a\v    b"]
)
def test_a_line_that_is_not_indented_does_not_begin_in_the_words_of_somebody_else(text):
    shown = printable(text, keep_lines=True)

    assert len(shown) == len(text)
    assert all(line.startswith("    ") for line in shown.splitlines()[1:])


def test_ordinary_text_in_any_language_stays():
    assert printable("größer, 更大, أكبر") == "größer, 更大, أكبر"


def hello(text):
    return Hello(host=text, addresses=(), pid=1, rank=None, size=None, job=text, name=text, device=text)


def standing(text):
    return Standing(0, text, text, 1, text, 1, None, 0.0, is_done=False, waits_for=(), doing=text)


@pytest.mark.parametrize("make", [hello, standing])
def test_what_a_member_calls_itself_cannot_fool_a_terminal(make):
    message = make(NASTY)

    texts = [each for each in (getattr(message, field) for field in message.__struct_fields__) if isinstance(each, str)]
    assert len(texts) == 4
    assert all(text.isprintable() for text in texts)


def test_a_member_cannot_send_control_characters_past_the_codec():
    fields = {"type": "Revoked", "epoch": 1, "cause": "lost", "rank": 0, "words": NASTY}

    message = decode(msgspec.msgpack.encode(fields))

    assert message.words == printable(NASTY, keep_lines=True)
