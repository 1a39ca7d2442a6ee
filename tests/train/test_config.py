import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import ConfigError
from phalanx.train.config import (
    Config,
    DataConfig,
    Device,
    EngineChoice,
    ModelConfig,
    RunConfig,
    TorchBackend,
    TrainConfig,
    Transport,
)
from phalanx.train.config_text import describe_keys, explain_config, format_config, parse_config

paths = st.none() | st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=4096)
configs = st.builds(
    Config,
    model=st.builds(
        ModelConfig,
        layers=st.integers(1, 99),
        tied=st.booleans(),
        dropout=st.floats(0, 1, exclude_max=True),
        rope_base=st.floats(1, 1e9),
    ),
    data=st.builds(DataConfig, path=paths, held_out=st.floats(0, 0.5, exclude_min=True), context=st.integers(1, 2**20)),
    train=st.builds(TrainConfig, seed=st.integers(0, 2**63 - 1), lr=st.floats(0.01, 1), min_lr=st.floats(0, 0.01)),
    run=st.builds(RunConfig, directory=paths, transport=st.sampled_from(Transport), device=st.sampled_from(Device)),
)


def test_no_text_at_all_gives_the_defaults():
    assert parse_config("") == Config()


@settings(deadline=None)
@given(config=configs)
def test_what_is_written_reads_back_as_an_equal_config(config):
    text = format_config(config)

    assert parse_config(text) == config


def test_sections_and_keys_are_read_from_toml():
    text = '[model]\nwidth = 256\n\n[train]\nlr = 1\n\n[run]\ntransport = "star"\n'

    config = parse_config(text)

    assert config.model.width == 256
    assert config.train.lr == 1.0
    assert config.run.transport is Transport.STAR


def test_settings_win_over_the_text_and_the_last_over_the_first():
    text = "[train]\nlr = 0.1\nsteps = 50\n"

    config = parse_config(text, ["train.lr=3e-3", "train.lr = 2e-3", "train.autocast=true"])

    assert config.train == TrainConfig(lr=2e-3, steps=50, autocast=True)


@pytest.mark.parametrize("value", ["my texts/a.txt", '"my texts/a.txt"'])
def test_a_setting_that_is_no_toml_is_taken_as_text(value):
    config = parse_config("", [f"data.path={value}"])

    assert config.data.path == "my texts/a.txt"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[train]\nstep = 3", r"has no train\.step: did you mean train\.steps\?"),
        ("[train]\nworkers = 3", r"has no train\.workers: did you mean run\.workers\?"),
        ("[modle]\n", r"has no modle: did you mean model\?"),
        ("steps = 3", r"has no steps: did you mean train\.steps\?"),
        ("[model]\nzzqqx = 3", r"has no model\.zzqqx: the sections are model, data, train, run"),
        ("model = 3", r"write \[model\]"),
        ("[model", "is not TOML"),
    ],
)
def test_what_no_config_has_is_refused_with_what_was_perhaps_meant(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_config(text)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.layers=4.5", r"model\.layers must be a whole number, not 4\.5"),
        ("model.layers=true", r"model\.layers must be a whole number, not True"),
        ("train.lr=fast", r"train\.lr must be a number, not 'fast'"),
        ("train.autocast=1", r"train\.autocast must be true or false, not 1"),
        ("data.path=1", r"data\.path must be a text in quotes, not 1"),
        ("run.transport=tpc", r"run\.transport must be one of auto, arena, tcp, star, not 'tpc'"),
        ("run.device=gpu", r"run\.device must be one of auto, cpu, cuda, not 'gpu'"),
        ("train.lr", r"write section\.key=value"),
        ("lr=3", r"has no lr: did you mean train\.lr\?"),
        ("model=5", r"^model is a section, not a key: write model\.key=value; --show-config lists the keys$"),
        (
            "train.lr=1\ntrain.steps=2",
            r"^'train\.lr=1\\ntrain\.steps=2' sets nothing: write section\.key=value in one line",
        ),
    ],
)
def test_a_value_of_another_type_is_refused_in_words(setting, words):
    with pytest.raises(ConfigError, match=words):
        parse_config("", [setting])


@pytest.mark.parametrize(
    "key",
    [
        *("model.layers", "model.width", "model.heads", "model.kv_heads", "model.hidden", "model.rope_base"),
        *("data.context", "data.held_out", "train.steps", "train.batch", "train.lanes", "train.accumulate"),
        *("train.lr", "train.eval_every", "train.eval_batches"),
        *("run.workers", "run.threads_per_worker", "run.checkpoint_every", "run.keep"),
    ],
)
def test_what_must_be_positive_cannot_be_zero(key):
    with pytest.raises(ConfigError, match=rf"{key} must be (at least 1|greater than 0), not 0"):
        parse_config("", [f"{key}=0"])


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.dropout=1.0", "less than 1"),
        ("model.dropout=-0.1", "at least 0"),
        ("model.rope_base=inf", "at most"),
        ("data.held_out=0.6", "at most 0.5"),
        ("train.lr=1.5", "at most 1"),
        ("train.lr=nan", "greater than 0, not nan"),
        ("train.min_lr=-1e-9", "at least 0"),
        ("train.min_lr=0.5", r"train\.min_lr 0\.5 is above train\.lr"),
        ("train.weight_decay=-1", "at least 0"),
        ("train.beta1=1", "less than 1"),
        ("train.beta2=1", "less than 1"),
        ("train.clip=-1", "at least 0"),
        ("train.clip=inf", "at most"),
        ("train.seed=-1", "at least 0"),
        ("train.seed=9223372036854775808", "at most 9223372036854775807"),
        ("train.warmup=-1", "at least 0"),
        ("train.warmup=301", "lower it or raise train.steps"),
        ("train.batch=12", "make it a multiple of 8"),
        ("train.accumulate=4", "make it a multiple of 32"),
        ("model.heads=3", "make it a multiple of model.heads"),
        ("model.kv_heads=3", "make it a multiple of model.kv_heads"),
        ("model.width=12", "make model.width / model.heads even"),
        ("run.workers=9", "raise train.lanes or lower run.workers"),
        ("data.path=''", "data.path is empty"),
        ("run.directory=''", "run.directory is empty"),
        ('data.path="a\\u0000b"', r"data\.path 'a\\x00b' has a control character"),
        ("model.layers=9223372036854775807", "model.layers must be at most 1000"),
        ("model.width=1000000000", "model.width must be at most 65536"),
        ("train.seed=" + "9" * 5000, "train.seed must be a whole number, not '9999"),
        ("train.seed=0x" + "f" * 5000, "train.seed must be a number that fits into 64 bits"),
        ("data.path=" + "[" * 5000 + "]" * 5000, r"data\.path '?\[\[|data.path has 10,000 letters"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_change(setting, words):
    with pytest.raises(ConfigError, match=words):
        parse_config("", [setting])


@pytest.mark.parametrize(("settings", "warmup"), [([], 20), (["train.steps=3"], 3), (["train.steps=21"], 20)])
def test_the_default_warm_up_is_never_longer_than_the_run(settings, warmup):
    assert parse_config("", settings).train.warmup == warmup


def test_a_step_of_too_many_tokens_is_refused():
    with pytest.raises(ConfigError, match="has 4,294,967,296 tokens, and at most 2,147,483,648 are possible"):
        parse_config("", ["train.batch=65536", "data.context=65536"])


@settings(deadline=None)
@given(st.text() | st.text("[]{}=\"'\n.#0123456789 abcdefmodltrain_", max_size=60))
def test_any_text_is_a_config_or_refused_in_one_line(text):
    try:
        parse_config(text)
    except ConfigError as error:
        words = str(error)
    else:
        words = "a config"

    assert words.isprintable()


def test_what_cannot_be_cannot_be_built_by_hand_either():
    with pytest.raises(ConfigError, match=r"model\.layers must be at least 1, not 0"):
        ModelConfig(layers=0)


def test_every_key_is_described_with_its_type_its_default_and_what_it_is():
    keys = {key.name: key for key in describe_keys()}

    assert keys["train.lanes"].type == "a whole number"
    assert keys["train.lanes"].default == "8"
    assert keys["data.path"].default == ""
    assert all(key.description.endswith(".") for key in keys.values())


def test_the_described_defaults_are_the_defaults():
    defaults = [f"{key.name}={key.default}" for key in describe_keys() if key.default]
    tables = tomllib.loads(format_config(Config()))

    config = parse_config("", defaults)

    assert config == Config()
    assert len(defaults) == sum(map(len, tables.values()))


def test_an_explained_config_is_the_same_config():
    config = parse_config("", ["train.lr=0.002", "run.workers=3"])

    text = explain_config(config)

    assert parse_config(text) == config
    assert "# Learning rate after the warm-up.\nlr = 0.002" in text
    assert "# path =" in text


@pytest.mark.parametrize("key", ["zero", "paranoid"])
def test_what_needs_workers_that_reach_each_other_is_refused_with_a_gradient_server(key):
    with pytest.raises(ConfigError, match=f"pass --no-{key}, or another --transport"):
        parse_config("", [f"run.{key}=true", "run.transport=star"])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"zero": True}, "--zero needs our own transports"),
        ({"paranoid": True}, "--paranoid needs our own transports"),
        ({"transport": Transport.TCP}, "--transport needs our own transports"),
        ({"workers": 4, "min_workers": 2}, "a range of workers needs our own transports"),
    ],
)
def test_what_a_torch_group_cannot_do_is_refused(asked, words):
    RunConfig(engine=EngineChoice.TORCH, torch_backend=TorchBackend.GLOO, workers=4, min_workers=4)

    with pytest.raises(ConfigError, match=words):
        RunConfig(engine=EngineChoice.TORCH, **asked)


def test_a_backend_of_torch_needs_the_engine():
    with pytest.raises(ConfigError, match="pass --engine torch too"):
        RunConfig(torch_backend=TorchBackend.NCCL)
