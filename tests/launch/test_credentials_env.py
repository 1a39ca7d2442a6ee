import pytest

from phalanx.errors import ConfigError
from phalanx.launch.env import Launch, find_credentials, worker_environ
from phalanx.transport import Credentials
from phalanx.wire import Address

TOKENS = {name: f"the-token-that-{name}-holds" for name in ("option", "file", "variable")}
TLS = ("PHALANX_TLS_CERT", "PHALANX_TLS_KEY", "PHALANX_TLS_CA")


@pytest.fixture
def folder(tmp_path):
    """Files that hold a token each."""
    for name in ("option", "file"):
        (tmp_path / name).write_text(f"{TOKENS[name]}\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ((), None),
        (("variable",), "variable"),
        (("file",), "file"),
        (("option",), "option"),
        (("file", "variable"), "file"),
        (("option", "file", "variable"), "option"),
    ],
)
def test_the_token_that_was_said_most_plainly_counts(folder, places, expected):
    environ = {}
    if "variable" in places:
        environ["PHALANX_TOKEN"] = TOKENS["variable"]
    if "file" in places:
        environ["PHALANX_TOKEN_FILE"] = str(folder / "file")

    found = find_credentials(environ, folder / "option" if "option" in places else None)

    assert found == Credentials(TOKENS[expected].encode() if expected else None)


def test_empty_variables_say_nothing():
    empty = dict.fromkeys(("PHALANX_TOKEN", "PHALANX_TOKEN_FILE", *TLS), "")

    assert find_credentials(empty) == Credentials()


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"PHALANX_TOKEN": "too-short"}, "the token in PHALANX_TOKEN is too short to keep anybody out: "),
        ({"PHALANX_TOKEN_FILE": "FOLDER/short"}, "the token in FOLDER/short is too short to keep anybody out: "),
        ({"PHALANX_TOKEN_FILE": "FOLDER/missing"}, "cannot read the token in FOLDER/missing: No such file "),
        ({"PHALANX_TOKEN_FILE": "FOLDER"}, "cannot read the token in FOLDER: Is a directory; make one with "),
        ({"PHALANX_TOKEN_FILE": "FOLDER/noise"}, "cannot read the token in FOLDER/noise: it is not text; make one "),
    ],
)
def test_a_token_that_cannot_be_used_is_named_by_its_place_and_not_quoted(tmp_path, environ, words):
    (tmp_path / "short").write_text("too-short", encoding="utf-8")
    (tmp_path / "noise").write_bytes(b"\xff\xfe" * 20)

    with pytest.raises(ConfigError) as caught:
        find_credentials({name: value.replace("FOLDER", str(tmp_path)) for name, value in environ.items()})

    assert str(caught.value).startswith(words.replace("FOLDER", str(tmp_path)))
    assert "too-short" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"cert"}, "--tls-key and --tls-ca"),
        ({"key"}, "--tls-cert and --tls-ca"),
        ({"cert", "key"}, "--tls-ca"),
        ({"key", "ca"}, "--tls-cert"),
    ],
)
@pytest.mark.parametrize("is_option", [True, False])
def test_tls_needs_all_its_files(tmp_path, given, missing, is_option):
    paths = {name: tmp_path / name for name in given}
    options = tuple(paths.get(name) for name in ("cert", "key", "ca"))
    environ = {f"PHALANX_TLS_{name.upper()}": str(path) for name, path in paths.items()}

    with pytest.raises(ConfigError) as caught:
        find_credentials({}, None, options) if is_option else find_credentials(environ)

    assert str(caught.value) == f"TLS needs a certificate, its key and an authority: pass {missing} too"


def test_options_and_variables_may_name_the_files_of_tls_together(tmp_path):
    environ = {"PHALANX_TLS_KEY": "key.pem", "PHALANX_TLS_CA": "ca.pem", "PHALANX_TLS_CERT": "overruled.pem"}

    with pytest.raises(ConfigError, match=f"cannot read {tmp_path}/cert.pem: No such file or directory"):
        find_credentials(environ, None, (tmp_path / "cert.pem", None, None))


@pytest.mark.parametrize("rank", [None, 1])
def test_a_worker_finds_the_token_of_its_launcher_whatever_else_was_said(monkeypatch, rank):
    monkeypatch.setenv("PHALANX_TOKEN_FILE", "another/token")
    monkeypatch.setenv("PHALANX_TLS_CERT", "another/certificate")
    credentials = Credentials(TOKENS["option"].encode())
    where = (Address(host="10.0.0.5", port=7000),)
    launch = Launch(rank=rank, size=rank and 3, job="j", coordinator=where, credentials=credentials)

    environ = worker_environ(launch, threads=1)

    assert find_credentials(environ) == credentials


@pytest.mark.parametrize(("mode", "is_warned_of"), [(0o600, False), (0o400, False), (0o644, True), (0o660, True)])
def test_a_token_that_others_can_read_is_warned_of(tmp_path, caplog, mode, is_warned_of):
    path = tmp_path / "token"
    path.write_text("a token that is long enough", encoding="utf-8")
    path.chmod(mode)

    find_credentials({}, path)

    assert (f"others on this machine can read the token in {path}: chmod 600 {path}" in caplog.text) == is_warned_of
    assert "long enough" not in caplog.text
