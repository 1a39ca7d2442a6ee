"""Text from peers, made harmless for logs and terminals."""

_PICTURES = 0x2400  # Unicode has a picture of every control character, from here on
_DELETE = 0x7F


def printable(text: str, *, keep_lines: bool = False) -> str:
    """Return a peer's text with a visible character in place of each control character. Its length does not change.

    With ``keep_lines``, line breaks and tabs stay.
    """
    kept = "\n\t" if keep_lines else ""
    return "".join(each if each.isprintable() or each in kept else _picture(each) for each in text)


def _picture(letter: str) -> str:
    code = ord(letter)
    if code < ord(" "):
        return chr(_PICTURES + code)
    return "\N{SYMBOL FOR DELETE}" if code == _DELETE else "\N{REPLACEMENT CHARACTER}"
