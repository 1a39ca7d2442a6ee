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


def test_line_breaks_and_tabs_stay_where_people_read_several_lines():
    assert printable("a\n\tb\r", keep_lines=True) == "a\n\tb\N{SYMBOL FOR CARRIAGE RETURN}"


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
