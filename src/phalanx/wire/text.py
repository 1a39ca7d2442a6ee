"""Text from peers, made harmless for logs and terminals."""

LINE_BREAK = "\n    "
"""The line break that stays in a peer's words: no log line and no error begins with these spaces, so it forges none."""

_PICTURES = 0x2400  # Unicode has a picture of every control character, from here on
_DELETE = 0x7F


def printable(text: str, *, keep_lines: bool = False) -> str:
    """Return a peer's text with a visible character in place of each control character. Its length does not change.

    With ``keep_lines``, tabs stay, and so does every ``LINE_BREAK``.
    """
    if keep_lines:
        return LINE_BREAK.join("\t".join(map(printable, line.split("\t"))) for line in text.split(LINE_BREAK))
    return "".join(each if each.isprintable() else _picture(each) for each in text)


def _picture(letter: str) -> str:
    code = ord(letter)
    if code < ord(" "):
        return chr(_PICTURES + code)
    return "\N{SYMBOL FOR DELETE}" if code == _DELETE else "\N{REPLACEMENT CHARACTER}"
