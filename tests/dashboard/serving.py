"""A served page for tests of several files."""

import contextlib
import socket
import threading
from http.client import HTTPConnection

import pytest

pytest.importorskip("uvicorn", reason="pip install 'phalanx-train[dashboard]' for the page")

from phalanx.dashboard.entrance import Entrance
from phalanx.dashboard.server import Limits, Page, listen, make_server
from phalanx.dashboard.watch import Watch
from phalanx.wire import Address

TOKEN = "a-token-that-is-long-enough"  # noqa: S105 - of these tests only


class Served:
    """A page that is served by a thread of this process, and requests to it over real sockets."""

    def __init__(self, run, **limits):
        self.codes = []
        self.limits = Limits(**limits)
        self._listening = listen(Address("127.0.0.1", 0), self.limits.patience_s)
        self.port = self._listening.getsockname()[1]
        entrance = Entrance(TOKEN.encode(), self.codes.append)
        self.page = Page(Watch(run), entrance, "phalanx-test", self.limits)
        self._server = make_server(self.page.application(), self.limits.patience_s)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listening]}, name="page", daemon=True
        )
        self.cookie = ""

    def __enter__(self):
        self._thread.start()
        answer, _ = self.get(f"/enter?code={self.codes[-1]}")
        self.cookie = answer.getheader("set-cookie")
        return self

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()

    def get(self, path, *, method="GET", **headers):
        with contextlib.closing(HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer, answer.read()

    def get_inside(self, path):
        return self.get(path, cookie=self.cookie.partition(";")[0])

    def connect(self, *, receive_bytes=None):
        opened = socket.socket()
        if receive_bytes:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        opened.settimeout(30)
        opened.connect(("127.0.0.1", self.port))
        return opened

    def open_stream(self, **options):
        opened = self.connect(**options)
        cookie = self.cookie.partition(";")[0]
        opened.sendall(f"GET /events HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n".encode())
        return opened
