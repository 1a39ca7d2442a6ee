"""The server of the page: read-only, and it answers nobody who was not let in."""

import asyncio
import contextlib
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib.resources import files

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from phalanx.dashboard.entrance import Entrance
from phalanx.dashboard.watch import Watch
from phalanx.errors import ConfigError
from phalanx.train.run_status import format_metrics
from phalanx.transport import format_address
from phalanx.wire import Address

_HEADER_BYTES = 1 << 14
_MOST_CONNECTIONS = 128
_MOST_SHARE = 0.03  # of a core, for looking at the files
_LONGEST_PAUSE = 5.0  # times the usual one
_FOR_PROGRAMS = ("/metrics", "/status.json")
_NO_RANK = -1
_HARDENING = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one server bears: open streams, seconds that a slow reader or sender gets, and seconds between looks."""

    streams: int = 32
    patience_s: float = 10.0
    look_s: float = 1.0


class Page:
    """The routes of the page of one run."""

    def __init__(self, watch: Watch, entrance: Entrance, cookie: str, limits: Limits) -> None:
        self._watch, self._entrance, self._cookie, self._limits = watch, entrance, cookie, limits
        self._lock = asyncio.Lock()
        self._state = b""
        self._due = 0.0
        self.streams = 0
        """How many streams are open."""

    def application(self) -> ASGIApp:
        """Return the application: all routes behind the entrance."""
        routes = [
            Route("/", self._show),
            Route("/uplot.js", lambda _: _asset("uPlot.iife.min.js", "text/javascript")),
            Route("/uplot.css", lambda _: _asset("uPlot.min.css", "text/css")),
            Route("/state.json", self._tell_state),
            Route("/events", self._stream),
            Route("/strips.json", self._tell_strips),
            Route("/status.json", self._tell_status),
            Route("/metrics", self._tell_metrics),
            Route("/stacks", self._tell_stacks),
            Route("/log", self._tell_log),
        ]
        return _Door(Starlette(routes=routes), self._entrance, self._cookie)

    async def _show(self, _: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        text = (files("phalanx.dashboard") / "page.html").read_text(encoding="utf-8").replace("NONCE", nonce)
        policy = (
            f"default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'nonce-{nonce}'; img-src data:;"
            " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(text, headers={"content-security-policy": policy})

    async def _tell_state(self, _: Request) -> Response:
        return _json(await self._look())

    async def _stream(self, _: Request) -> Response:
        if self.streams >= self._limits.streams:
            return PlainTextResponse(f"{self.streams} pages are open already: close one\n", status_code=503)
        return _EventStream(self._events(), self._limits.patience_s)

    async def _events(self) -> AsyncIterator[bytes]:
        """Yield the state whenever it has changed, and a comment otherwise, by which a closed page is noticed."""
        self.streams += 1
        try:
            told = b""
            while True:
                state = await self._look()
                yield b": nothing new\n\n" if state == told else b"data: " + state + b"\n\n"
                told = state
                await asyncio.sleep(self._limits.look_s)
        finally:
            self.streams -= 1

    async def _look(self) -> bytes:
        """Return the state. However many ask, files are looked at once in ``look_s``, or less often if it is dear."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now >= self._due:
                self._state, spent_s = await asyncio.to_thread(self._look_now)
                pauses = min(max(0.9, spent_s / _MOST_SHARE / self._limits.look_s), _LONGEST_PAUSE)
                self._due = asyncio.get_running_loop().time() + pauses * self._limits.look_s
            return self._state

    def _look_now(self) -> tuple[bytes, float]:
        began = time.thread_time()
        return msgspec.json.encode(self._watch.look()), time.thread_time() - began

    async def _tell_strips(self, request: Request) -> Response:
        try:
            start, end = (float(request.query_params[name]) for name in ("start", "end"))
        except (KeyError, ValueError):
            return _refuse("say from when to when, in seconds since 1970: ?start=1&end=2")
        if not 0 <= start < end < 2**33:
            return _refuse("the end must come after the start")
        async with self._lock:
            return _json(msgspec.json.encode(await asyncio.to_thread(self._watch.window, start, end)))

    async def _tell_status(self, _: Request) -> Response:
        await self._look()
        return _json(msgspec.json.encode(self._watch.status()))

    async def _tell_metrics(self, _: Request) -> Response:
        await self._look()
        return PlainTextResponse(format_metrics(self._watch.status()), media_type="text/plain; version=0.0.4")

    async def _tell_stacks(self, request: Request) -> Response:
        rank = _rank(request)
        if rank is None or rank == _NO_RANK:
            return _refuse("say of which rank: ?rank=0")
        return PlainTextResponse(await asyncio.to_thread(self._watch.stacks, rank))

    async def _tell_log(self, request: Request) -> Response:
        rank = _rank(request)
        if rank == _NO_RANK:
            return _refuse("a rank is a number: ?rank=0")
        return PlainTextResponse(await asyncio.to_thread(self._watch.log, rank))


class _Door:
    """Lets in who has a cookie or a token, and exchanges codes for cookies. All others get 401 and nothing else."""

    def __init__(self, inside: ASGIApp, entrance: Entrance, cookie: str) -> None:
        self._inside, self._entrance, self._cookie = inside, entrance, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        answer: ASGIApp = self._inside
        if request.url.path == "/enter" and request.method == "GET":
            answer = self._enter(request)
        elif not self._is_let_in(request):
            words = "You need the link that the command has printed.\n"
            answer = PlainTextResponse(words, status_code=401, headers={"connection": "close"})
        await answer(scope, receive, _harden(send))

    def _is_let_in(self, request: Request) -> bool:
        if self._entrance.knows(request.cookies.get(self._cookie, "")):
            return True
        return request.url.path in _FOR_PROGRAMS and self._entrance.accepts(request.headers.get("authorization", ""))

    def _enter(self, request: Request) -> Response:
        cookie = self._entrance.exchange(request.query_params.get("code", ""))
        if cookie is None:
            words = "This link was used before, or is wrong. The command has printed a new one.\n"
            return PlainTextResponse(words, status_code=401, headers={"connection": "close"})
        # A page and not a redirect: a browser that comes from another site would not send the new cookie along.
        response = HTMLResponse('<!doctype html><meta http-equiv="refresh" content="0;url=/"><title>Phalanx</title>')
        response.set_cookie(self._cookie, cookie, httponly=True, samesite="strict", path="/")
        return response


class _EventStream(Response):  # type: ignore[misc]  # what starlette has is Any, installed or not
    """A stream of server-sent events. A reader that takes none for ``patience_s`` is dropped."""

    def __init__(self, events: AsyncIterator[bytes], patience_s: float) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._events, self._patience_s = events, patience_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - of the base
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.ensure_future(_wait_until_gone(receive))
        async with contextlib.aclosing(self._events) as events:  # type: ignore[type-var]  # it is a generator
            with contextlib.suppress(TimeoutError):
                async for event in events:
                    if gone.done():
                        break
                    body = {"type": "http.response.body", "body": event, "more_body": True}
                    await asyncio.wait_for(send(body), self._patience_s)
        gone.cancel()


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _harden(send: Send) -> Send:
    async def hardened(message: dict[str, object]) -> None:
        if message["type"] == "http.response.start":
            headers = message["headers"]
            assert isinstance(headers, list)
            known = {name for name, _ in headers}
            more = [(name.encode(), value.encode()) for name, value in _HARDENING.items() if name.encode() not in known]
            message = {**message, "headers": headers + more}
        await send(message)

    return hardened


def _asset(name: str, kind: str) -> Response:
    content = (files("phalanx.dashboard") / "uplot" / name).read_bytes()
    return Response(content, media_type=kind, headers={"cache-control": "max-age=3600"})


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _refuse(words: str) -> Response:
    return PlainTextResponse(f"{words}\n", status_code=400)


def _rank(request: Request) -> int | None:
    """Return the rank that a request names, None if it names none, and ``_NO_RANK`` if it is no rank."""
    text = request.query_params.get("rank")
    if text is None:
        return None
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else _NO_RANK


def listen(bind: Address, patience_s: float) -> socket.socket:
    """Return a socket that listens; the system drops who takes nothing of what it was sent for ``patience_s``."""
    try:
        listening = socket.create_server((bind.host, bind.port), backlog=_MOST_CONNECTIONS)
    except OSError as error:
        raise ConfigError(f"cannot serve at {format_address(bind)}: {error.strerror}; name another --bind") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(patience_s * 1000))
    return listening


def serve(
    watch: Watch,
    bind: Address,
    token: bytes | None,
    announce: Callable[[str], None],
    limits: Limits | None = None,
) -> None:
    """Serve the page of a run until the process is told to stop. ``announce`` gets every link that lets in."""
    limits = limits or Limits()
    with listen(bind, limits.patience_s) as listening:
        host, port = listening.getsockname()[:2]
        base = f"http://{format_address(Address(host, port))}"
        entrance = Entrance(token, lambda code: announce(f"{base}/enter?code={code}"))
        page = Page(watch, entrance, f"phalanx-{port}", limits)
        make_server(page.application(), limits.patience_s).run(sockets=[listening])


def make_server(application: ASGIApp, patience_s: float) -> uvicorn.Server:
    """Return a server that bears hostile requests. Who sends no whole request within ``patience_s`` is sent away."""

    class Impatient(H11Protocol):  # type: ignore[misc]  # so is what uvicorn has
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.loop.call_later(patience_s, self._send_away)

        def _send_away(self) -> None:
            if not self.cycle:
                self.transport.abort()

    # Open streams are cut off when the page ends: that is no error.
    logging.getLogger("uvicorn.error").addFilter(lambda record: "graceful" not in str(record.msg))
    config = uvicorn.Config(
        application,
        http=Impatient,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=_HEADER_BYTES,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)
