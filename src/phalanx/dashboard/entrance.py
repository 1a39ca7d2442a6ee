"""Who may see the page: a link with a code that works once, the cookie that it is exchanged for, or the token."""

import hmac
import secrets
from collections.abc import Callable

_MOST_SESSIONS = 64


class Entrance:
    """Decides who is let in. ``token`` is None if nobody may come with a token.

    A code works once. Then ``announce`` gets the next one, so that a second browser can be let in.
    """

    def __init__(self, token: bytes | None, announce: Callable[[str], None]) -> None:
        self._token = token
        self._announce = announce
        self._cookies: list[bytes] = []
        self._code = b""
        self._renew()

    def exchange(self, code: str) -> str | None:
        """Return a cookie for a code; None if the code is not the present one."""
        if not hmac.compare_digest(code.encode(), self._code):
            return None
        cookie = secrets.token_urlsafe(32)
        self._cookies = [*self._cookies, cookie.encode()][-_MOST_SESSIONS:]
        self._renew()
        return cookie

    def knows(self, cookie: str) -> bool:
        """Return whether a code was exchanged for this cookie."""
        found = [hmac.compare_digest(cookie.encode(), each) for each in self._cookies]
        return any(found)

    def accepts(self, authorization: str) -> bool:
        """Return whether a header has the token: ``Bearer TOKEN``."""
        if self._token is None:
            return False
        return hmac.compare_digest(authorization.encode(), b"Bearer " + self._token)

    def _renew(self) -> None:
        code = secrets.token_urlsafe(24)
        self._code = code.encode()
        self._announce(code)
