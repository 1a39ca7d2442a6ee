import json
from contextlib import ExitStack
from urllib.parse import quote

import pytest
from recorded_run import make_step, write_run
from serving import TOKEN, Served

from phalanx.train.log import StepLog

ROUTES = (
    "/",
    "/uplot.js",
    "/uplot.css",
    "/state.json",
    "/events",
    "/strips.json?start=1&end=2",
    "/status.json",
    "/metrics",
    "/stacks?rank=0",
    "/log",
    "/none",
)


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", 4, 200)


@pytest.fixture
def served(run):
    with Served(run) as each:
        yield each


@pytest.mark.parametrize("path", ROUTES)
def test_who_was_not_let_in_sees_nothing(served, path):
    for headers in ({}, {"cookie": "phalanx-test=guess"}, {"authorization": "Bearer guess"}):
        answer, body = served.get(path, **headers)

        assert answer.status == 401
        assert body == b"You need the link that the command has printed.\n"


def test_a_code_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(served):
    assert "HttpOnly" in served.cookie
    assert "SameSite=strict" in served.cookie
    assert served.get(f"/enter?code={served.codes[0]}")[0].status == 401
    assert served.get_inside("/")[0].status == 200


@pytest.mark.parametrize("path", ["/metrics", "/status.json"])
def test_programs_read_figures_with_the_token(served, path):
    answer, body = served.get(path, authorization=f"Bearer {TOKEN}")

    assert answer.status == 200
    assert b"200" in body


def test_the_token_opens_no_other_route(served):
    assert served.get("/state.json", authorization=f"Bearer {TOKEN}")[0].status == 401


def test_the_page_may_load_nothing_from_elsewhere(served):
    answer, body = served.get_inside("/")

    policy = answer.getheader("content-security-policy")
    assert "default-src 'none'" in policy
    assert "http" not in policy
    assert b"NONCE" not in body
    for path in ROUTES:
        if path != "/events":
            assert served.get_inside(path)[0].getheader("content-security-policy"), path


def test_the_state_tells_the_run(served):
    state = json.loads(served.get_inside("/state.json")[1])

    assert state["status"]["step"] == 200
    assert state["marks"][0]["kind"] == "failure"
    assert [each["state"] for each in state["crew"]] == ["in", "in", "in", "new"]
    assert state["strips"]["waits"][0][1] == 1  # everybody waits for rank 1
    assert set(state["strips"]["rows"]) == {"0", "1", "2", "3"}
    assert "lost" in state["feed"][0]["words"]


def test_strips_can_be_zoomed_until_the_parts_of_a_step_are_seen(served):
    first, _ = json.loads(served.get_inside("/state.json")[1])["span"]

    strips = json.loads(served.get_inside(f"/strips.json?start={first + 1}&end={first + 1.1}")[1])

    row = strips["rows"]["0"]
    assert row.startswith("c" * 160)
    assert "w" in row[160:]
    assert "x" in row[160:]


@pytest.mark.parametrize(
    "query", ["", "?start=1", "?start=a&end=b", "?start=2&end=1", "?start=nan&end=nan", "?start=0&end=1e99"]
)
def test_a_window_that_is_none_is_refused(served, query):
    assert served.get_inside(f"/strips.json{query}")[0].status == 400


def test_what_there_is_no_log_of_is_said(served):
    assert b"--log-dir" in served.get_inside("/log?rank=0")[1]
    assert b"no coordinator.log" in served.get_inside("/log")[1]


def test_stacks_of_a_run_that_is_over_are_explained(served):
    assert b"it is over" in served.get_inside("/stacks?rank=0")[1]


@pytest.mark.parametrize("rank", ["../../etc/passwd", "-1", "0x1", "%00", "٣", "1" * 50])
def test_a_rank_is_a_number_and_never_a_path(served, rank):
    for route in ("log", "stacks"):
        assert served.get_inside(f"/{route}?rank={quote(rank)}")[0].status == 400


@pytest.mark.parametrize(
    "path", ["/../config.toml", "/%2e%2e/config.toml", "//etc/passwd", "/uplot/../page.html", "/page.html"]
)
def test_no_path_leads_to_a_file(served, path):
    assert served.get_inside(path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(served, method):
    cookie = served.cookie.partition(";")[0]

    assert served.get("/state.json", method=method, cookie=cookie)[0].status == 405


def test_huge_headers_are_refused(served):
    with served.connect() as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000)

        assert stranger.recv(1000).startswith(b"HTTP/1.1 400")


def test_a_stream_tells_what_is_new(run):
    with Served(run, look_s=0.02) as served, served.open_stream() as stream, stream.makefile("rb") as lines:
        assert read_step(lines) == 200
        with StepLog(run.steps) as log:
            log.append(make_step(200, 4))

        assert read_step(lines) == 201


def read_step(lines):
    for line in lines:
        if line.startswith(b"data: "):
            return json.loads(line[6:])["status"]["step"]
    return None


def test_more_streams_than_the_limit_are_refused_and_closed_ones_are_forgotten(run):
    with Served(run, streams=3, look_s=0.02) as served:
        with ExitStack() as stack:
            for _ in range(3):
                assert stack.enter_context(served.open_stream()).recv(20).startswith(b"HTTP/1.1 200")

            with served.open_stream() as refused:
                assert refused.recv(20).startswith(b"HTTP/1.1 503")
        while served.page.streams:
            served.get_inside("/log")

        with served.open_stream() as stream:
            assert stream.recv(20).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_a_thousand_strangers_keep_nobody_out(run):
    with Served(run) as served, ExitStack() as stack:
        for _ in range(1000):
            stranger = stack.enter_context(served.connect())
            stranger.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")

        while served.get_inside("/state.json")[0].status == 503:
            pass  # those whose answer is on its way still count
        assert served.get_inside("/state.json")[0].status == 200


def test_strangers_who_say_nothing_are_sent_away(run):
    with Served(run, patience_s=0.2) as served, ExitStack() as stack:
        silent = [stack.enter_context(served.connect()) for _ in range(200)]

        assert {each.recv(10) for each in silent} == {b""}
        assert served.get_inside("/state.json")[0].status == 200


def test_a_reader_that_takes_nothing_is_dropped(run):
    with Served(run, patience_s=0.3, look_s=0.001) as served, served.open_stream(receive_bytes=4096) as stream:
        assert stream.recv(20)
        with StepLog(run.steps) as log:
            step = 200
            while served.page.streams:  # every step is news, until the buffers are full
                log.append(make_step(step, 4))
                step += 1
                served.get_inside("/log")

        assert served.get_inside("/state.json")[0].status == 200
