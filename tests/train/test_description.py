"""What workers of one run must have in common."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import make_config

from phalanx.errors import ConfigError
from phalanx.train.data import open_corpus
from phalanx.train.description import check_same, decode_description, describe_run, encode_description


def describe(config):
    return describe_run(config, open_corpus(config.data), run="word", version="1.2", device="cpu")


def test_a_description_comes_back_from_its_bytes(tmp_path):
    config = make_config(tmp_path)

    found = decode_description(encode_description(describe(config)))

    assert found == describe(config)
    assert found.read_config() == config


@pytest.mark.parametrize(
    "settings", [[], ["run.workers=1"], ["run.directory='elsewhere'"], ["run.workers=4", "run.min_workers=2"]]
)
def test_what_is_decided_by_each_machine_may_differ(tmp_path, settings):
    check_same(describe(make_config(tmp_path, *settings)), describe(make_config(tmp_path)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"torch": "2.0"}, "torch is version 2.0 here and "),
        ({"phalanx": "9"}, "phalanx is version 9 here and 1.2 there"),
        ({"device": "cuda"}, "the device is cuda here and cpu there"),
    ],
)
def test_another_build_or_device_is_named_with_both_sides(tmp_path, changes, words):
    theirs = describe(make_config(tmp_path))

    with pytest.raises(ConfigError) as caught:
        check_same(msgspec.structs.replace(theirs, **changes), theirs)

    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.lr=0.5", "train.lr is 0.5 here and "),
        ("model.layers=3", "model.layers is 3 here and "),
        ("run.threads_per_worker=2", "run.threads_per_worker is 2 here and 1 there"),
    ],
)
def test_another_config_is_named_with_both_sides(tmp_path, setting, words):
    with pytest.raises(ConfigError) as caught:
        check_same(describe(make_config(tmp_path, setting)), describe(make_config(tmp_path)))

    assert words in str(caught.value)


def test_a_single_byte_in_the_middle_of_the_data_is_found(tmp_path):
    texts = np.full((2, 100_000), ord("x"), np.uint8)
    texts[1, 50_000] = ord("y")
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_bytes(text.tobytes())
    own, theirs = (
        describe(make_config(tmp_path, f"data.path={str(tmp_path)!r}/{n}.txt".replace("'", ""))) for n in (0, 1)
    )

    with pytest.raises(ConfigError) as caught:
        check_same(own, theirs)

    assert f"the data is {tmp_path}/0.txt with 100,000 bytes of uint8, digest {own.data.digest[:16]} here, and " in str(
        caught.value
    )
    assert f"{tmp_path}/1.txt with 100,000 bytes of uint8, digest {theirs.data.digest[:16]} there" in str(caught.value)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_in_words(facts):
    with pytest.raises(ConfigError, match="describes a run that this release of phalanx cannot read"):
        decode_description(facts)
