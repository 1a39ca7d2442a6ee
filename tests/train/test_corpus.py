import math
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from forking import fork, wait
from phalanx.errors import ConfigError
from phalanx.train.config import DataConfig
from phalanx.train.data import Sequences, open_corpus


def write_text(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def write_tokens(path: Path, tokens: list[int]) -> str:
    np.array(tokens, dtype="<u2").tofile(path)
    return str(path)


def open_small(path: str, *, held_out: float = 0.5, context: int = 4):
    return open_corpus(DataConfig(path=path, held_out=held_out, context=context))


@pytest.mark.parametrize(("tokens", "count"), [(0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (13, 3)])
def test_a_sequence_needs_its_context_and_one_token_more(tokens, count):
    assert len(Sequences(np.zeros(tokens, np.uint8), 4)) == count


def test_a_batch_holds_windows_that_meet_only_in_the_last_target():
    sequences = Sequences(np.arange(13, dtype=np.uint8), 4)

    batch = sequences.batch([2, 0, 1])

    assert batch.dtype == np.int64
    assert batch.tolist() == [[8, 9, 10, 11, 12], [0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]


@pytest.mark.parametrize("number", [-1, 3])
def test_a_sequence_that_is_not_there_is_refused(number):
    sequences = Sequences(np.arange(13, dtype=np.uint8), 4)

    with pytest.raises(ConfigError, match=f"no sequence {number} of 3"):
        sequences.batch([number])


def test_a_text_file_is_its_bytes_and_its_end_is_held_out(tmp_path):
    path = write_text(tmp_path / "a.txt", "abcdefghijklmnopé")

    corpus = open_small(path, held_out=0.3)

    assert corpus.vocabulary == 256
    assert bytes(corpus.train.tokens) + bytes(corpus.held_out.tokens) == "abcdefghijklmnopé".encode()
    assert bytes(corpus.held_out.tokens) == "nopé".encode()
    assert corpus.describe() == f"{path}: 18 bytes, in sequences of 4: 3 for training, 1 held out"


def test_a_folder_is_its_texts_in_the_order_of_their_paths(tmp_path):
    write_text(tmp_path / "b.txt", "second")
    write_text(tmp_path / "a" / "deep.py", "first!")
    write_text(tmp_path / "notes", "third?")
    write_text(tmp_path / ".git" / "HEAD", "hidden")
    (tmp_path / "picture").write_bytes(b"\x89\0\0")
    write_tokens(tmp_path / "tokens.bin", [257, 258])

    corpus = open_small(str(tmp_path))

    assert bytes(corpus.tokens) == b"first!secondthird?"


def test_a_token_file_is_mapped_and_its_vocabulary_is_rounded_up(tmp_path):
    path = write_tokens(tmp_path / "data.bin", [*range(12), 128])

    corpus = open_small(path)

    assert isinstance(corpus.tokens, np.memmap)
    assert corpus.vocabulary == 192
    assert corpus.train.batch([0]).tolist() == [[0, 1, 2, 3, 4]]
    assert "13 tokens of 192" in corpus.describe()


@pytest.mark.parametrize(("largest", "vocabulary"), [(0, 64), (63, 64), (64, 128), (65535, 65536)])
def test_the_vocabulary_is_the_least_multiple_of_64_with_room_for_the_largest_token(tmp_path, largest, vocabulary):
    path = write_tokens(tmp_path / "data.bin", [0] * 2**20 + [largest])

    assert open_small(path).vocabulary == vocabulary


def test_the_unigram_entropy_is_that_of_the_held_out_part(tmp_path):
    path = write_text(tmp_path / "a.txt", "x" * 8 + "aaaabbbb")

    assert open_small(path).unigram_entropy() == pytest.approx(math.log(2))


def test_without_a_path_it_is_the_running_pythons_own_source():
    corpus = open_corpus(DataConfig())

    text = bytes(corpus.tokens)
    assert Path(os.__file__).read_bytes() in text
    assert Path(pytest.__file__).read_bytes() not in text
    assert corpus.describe().startswith("the Python standard library: ")
    assert len(corpus.train) > 10 * len(corpus.held_out) > 1000
    assert 2.5 < corpus.unigram_entropy() < math.log(256)


@pytest.mark.parametrize(
    "change", ["cd" + "ab" * 9999, "ab" * 9999 + "cd", "ab" * 10001], ids=["its beginning", "its end", "its length"]
)
def test_another_text_has_another_fingerprint(tmp_path, change):
    text = open_small(write_text(tmp_path / "a.txt", "ab" * 10000))
    same = open_small(write_text(tmp_path / "b.txt", "ab" * 10000))

    other = open_small(write_text(tmp_path / "c.txt", change))

    assert same.fingerprint() == text.fingerprint() != other.fingerprint()


def test_the_same_bytes_as_tokens_have_another_fingerprint(tmp_path):
    text = write_text(tmp_path / "a.txt", "a text of words, of a certain length")
    tokens = write_text(tmp_path / "a.bin", "a text of words, of a certain length")

    assert open_small(text).fingerprint() != open_small(tokens).fingerprint()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", r"no text in .*a\.txt: put some there"),
        ("a.bin", b"", r"no text in .*a\.bin"),
        ("a.bin", b"abc", "has 3 bytes, which is not a whole number of uint16 tokens"),
        ("a.txt", b"short", "training part of .* has 3 tokens and a sequence needs 5: choose a longer text"),
        ("a.txt", b"123456789", "held-out part of .* has 4 tokens and a sequence needs 5"),
    ],
)
def test_a_file_that_cannot_be_learnt_is_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(ConfigError, match=words):
        open_small(str(tmp_path / name))


def test_a_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no .*nowhere\.txt: change data\.path"):
        open_small(str(tmp_path / "nowhere.txt"))


def test_a_folder_without_texts_is_refused(tmp_path):
    (tmp_path / "picture").write_bytes(b"\x89\0\0")

    with pytest.raises(ConfigError, match="no text in"):
        open_small(str(tmp_path))


def test_what_is_neither_file_nor_folder_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(ConfigError, match="neither a file nor a folder"):
        open_small(str(tmp_path / "pipe"))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that even root cannot read")
def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "locked.txt").symlink_to("/proc/self/mem")

    with pytest.raises(ConfigError, match=r"cannot read .*: .*; fix that or change data\.path"):
        open_small(str(tmp_path))


def test_a_folder_that_cannot_be_read_is_refused_by_name():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_text(folder / "a.txt", "a text that can be read")
        write_text(folder / "locked" / "b.txt", "and one that cannot")
        (folder / "locked").chmod(0)

        def read():
            if os.geteuid() == 0:
                os.seteuid(65534)  # root can read everything
            with pytest.raises(ConfigError, match=rf"^cannot read {folder}/locked: Permission denied; fix that or"):
                open_small(name)

        assert wait(fork(read)) == 0
        (folder / "locked").chmod(0o755)
