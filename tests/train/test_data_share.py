"""The data of a run comes to machines that lack it, and nothing else does."""

import contextlib
import socket
import threading

import numpy as np
import pytest
from tiny import make_config

from phalanx.errors import AuthError, ConfigError, ConnectError
from phalanx.train.config import DataConfig
from phalanx.train.data import open_corpus
from phalanx.train.data_share import DataShare, fetch
from phalanx.train.description import DataFacts, describe_data
from phalanx.transport import Acceptor, Credentials
from phalanx.wire import Purpose

TOKEN = Credentials(b"sixteen-or-more-characters")


@pytest.mark.parametrize("name", ["text.txt", "tokens.bin"])
def test_a_copy_has_the_digest_of_the_original(tmp_path, name):
    data = np.random.default_rng(0).integers(0, 250, 3 << 20).astype(np.uint16 if name.endswith("bin") else np.uint8)
    (tmp_path / name).write_bytes(data.tobytes())
    corpus = open_corpus(DataConfig(path=str(tmp_path / name)))
    facts = describe_data(corpus)

    with DataShare("127.0.0.1", corpus, TOKEN) as share:
        file = fetch([share.address], facts, TOKEN, tmp_path / "copies")
    again = fetch([], facts, TOKEN, tmp_path / "copies")

    assert describe_data(open_corpus(DataConfig(path=str(file)))).digest == facts.digest
    assert again == file
    assert list((tmp_path / "copies").iterdir()) == [file]


def test_a_stranger_gets_nothing(tmp_path):
    corpus = open_corpus(make_config(tmp_path).data)
    with DataShare("127.0.0.1", corpus, TOKEN) as share, pytest.raises(AuthError):
        fetch([share.address], describe_data(corpus), Credentials(b"another-token-of-this-length"), tmp_path / "copies")

    assert list((tmp_path / "copies").iterdir()) == []


def facts_of(size):
    return DataFacts(name="text", size=size, kind="uint8", digest="0" * 64)


@pytest.mark.parametrize(("size", "sent"), [(100, 99), (100, 0)])
def test_a_copy_that_ends_too_early_is_not_kept(tmp_path, size, sent):
    with sending(b"x" * sent) as address, pytest.raises(ConnectError, match=f"hung up after {sent} bytes of the data"):
        fetch([address], facts_of(size), Credentials(), tmp_path / "copies")

    assert list((tmp_path / "copies").iterdir()) == []


def test_no_more_than_described_is_taken(tmp_path):
    with sending(b"x" * 1000) as address:
        file = fetch([address], facts_of(10), Credentials(), tmp_path / "copies")

    assert file.read_bytes() == b"x" * 10


def test_data_that_the_disk_has_no_room_for_is_refused_before_it_is_copied(tmp_path):
    with pytest.raises(ConfigError, match=r"the data has 1,125,899,906,842,624 bytes, and .* has room for "):
        fetch([("nowhere", 1)], facts_of(2**50), Credentials(), tmp_path / "copies")


def test_a_run_that_offers_no_data_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no machine of this run offers its data"):
        fetch([], facts_of(10), Credentials(), tmp_path / "copies")


@contextlib.contextmanager
def sending(data):
    """The address of a server that sends this to one client, and hangs up."""
    acceptor = Acceptor("127.0.0.1", 0, Credentials(), Purpose.DATA)
    is_over = threading.Event()

    def serve():
        while not is_over.is_set():
            for arrival in acceptor.arrivals():
                with arrival.socket as connected, contextlib.suppress(OSError):
                    connected.setblocking(True)
                    connected.sendall(data)
                    connected.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield acceptor.address
    finally:
        is_over.set()
        thread.join()
        acceptor.close()
