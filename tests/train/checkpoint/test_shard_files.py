"""Shards that ranks saved together are loaded as one, and any that does not fit is named."""

import errno
import json

import pytest
import torch
from checkpoint_play import alter, assert_same, names, remove, truncate
from shard_play import SIZE, cut, make_seats, make_whole, save_by_threads, save_shards

from phalanx.checkpoint import RemoteShards, draft
from phalanx.errors import ConfigError
from phalanx.testing import World
from phalanx.testing.hostile import repair_hashes, rewrite_tensors
from phalanx.train.checkpoint import Checkpoint, load, load_for_resume, prune, save, save_together
from phalanx.train.checkpoint import cut as cut_after

SHARDS = [f"optimizer.{rank}-of-4.safetensors" for rank in range(SIZE)]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "checkpoints"


def united(whole):
    """A checkpoint as it is loaded when it was written in shards."""
    state = {label: tensor for shard in cut(whole.files["optimizer"]) for label, tensor in shard.items()}
    return Checkpoint(whole.step, {**whole.files, "optimizer": state}, whole.facts)


# Writing and reading


def test_every_rank_writes_its_shard_and_all_are_loaded_as_one(folder):
    path = save_shards(folder, make_whole(5))

    assert path == folder / "step-00000005"
    assert names(folder) == ["step-00000005"]
    assert names(path) == ["facts.json", "manifest.json", "model.safetensors", *SHARDS]
    assert_same(load(path), united(make_whole(5)))


def test_the_manifest_has_the_size_of_every_shard(folder):
    path = save_shards(folder, make_whole(5))

    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))

    sizes = {name: manifest["files"][name]["size_bytes"] for name in SHARDS}
    assert sizes == {name: (path / name).stat().st_size for name in SHARDS}


def test_a_rank_alone_writes_what_save_writes(tmp_path):
    whole = make_whole(5)
    without = Checkpoint(5, {"model": whole.files["model"]}, whole.facts)
    (alone,) = make_seats(1)

    path = save_together(tmp_path / "together", without, whole.files["optimizer"], alone)

    expected = save(tmp_path / "saved", whole)
    assert names(path) == names(expected)
    assert all((path / name).read_bytes() == (expected / name).read_bytes() for name in names(path))


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_a_group_can_save_together(folder, over):
    whole = make_whole(5)
    checkpoint = Checkpoint(5, {"model": whole.files["model"]}, whole.facts)

    def work(group):
        shard = cut(whole.files["optimizer"])[group.rank]
        return save_together(folder, checkpoint, shard, group)

    paths = World(SIZE, over, lanes=SIZE).run(work)

    assert set(paths) == {folder / "step-00000005"}
    assert_same(load(paths[0]), united(whole))


@pytest.mark.parametrize("over", ["memory", "arena"])
def test_rank_0_writes_the_shards_of_ranks_that_do_not_see_the_folder(folder, over):
    whole = make_whole(5)
    checkpoint = Checkpoint(5, {"model": whole.files["model"]}, whole.facts)

    def work(group):
        shard = cut(whole.files["optimizer"])[group.rank]
        where = folder if group.rank == 0 else folder / "elsewhere"
        return save_together(where, checkpoint, shard, group, remote=RemoteShards(group, range(1, SIZE)))

    path, *_ = World(SIZE, over, lanes=SIZE).run(work)

    assert_same(load(path), united(whole))
    assert not (folder / "elsewhere").exists()


def test_ranks_that_send_their_shards_hear_that_they_cannot_be_written(folder, monkeypatch):
    whole = make_whole(5)
    full = OSError(errno.ENOSPC, "No space left on device")

    def refuse(*_):
        raise full

    monkeypatch.setattr("phalanx.checkpoint.remote_shards.write_file", refuse)

    def work(group):
        shard = cut(whole.files["optimizer"])[group.rank]
        with pytest.raises(ConfigError, match=r"rank 0 cannot write checkpoint .* No space left on device"):
            save_together(folder, whole, shard, group, remote=RemoteShards(group, range(1, SIZE)))

    World(SIZE, lanes=SIZE).run(work)

    assert names(folder) == []


def test_a_single_value_that_is_no_number_is_the_same_in_all_shards(folder):
    shards = [{"layer.bias.step": torch.tensor(torch.nan)} for _ in range(2)]

    found = load(save_shards(folder, make_whole(5), shards))

    assert found.files["optimizer"]["layer.bias.step"].isnan()


def test_a_set_in_shards_can_have_any_name(folder):
    def work(group):
        shard = cut(make_whole(5).files["optimizer"], 2)[group.rank]
        return save_together(folder, Checkpoint(5, {}, {}), shard, group, name="averages")

    path, _ = World(2, lanes=2).run(work)

    assert load(path).files.keys() == {"averages"}
    assert names(path)[:2] == ["averages.0-of-2.safetensors", "averages.1-of-2.safetensors"]


# Saving the same step again


def test_a_whole_checkpoint_with_the_same_shards_is_not_touched(folder):
    before = save_shards(folder, make_whole(5)).stat().st_ino

    path = save_shards(folder, make_whole(5))

    assert path.stat().st_ino == before
    assert names(folder) == ["step-00000005"]


def test_a_checkpoint_of_another_number_of_ranks_is_replaced(folder):
    whole = make_whole(5)
    save_shards(folder, whole)

    path = save_shards(folder, whole, cut(whole.files["optimizer"], 2))

    assert names(path)[3:] == ["optimizer.0-of-2.safetensors", "optimizer.1-of-2.safetensors"]
    assert names(folder) == ["step-00000005"]


# Going on, and removing


def test_a_run_goes_on_from_shards_and_a_damaged_shard_is_answered_with_an_earlier_checkpoint(folder):
    paths = [save_shards(folder, make_whole(step)) for step in (1, 2)]
    assert_same(load_for_resume(folder), united(make_whole(2)))

    alter(paths[1] / SHARDS[3])

    with pytest.raises(ConfigError, match=r"optimizer.3-of-4.safetensors does not have the hash .* --from-step 1$"):
        load_for_resume(folder)


def test_what_is_offered_fits_together(folder):
    save_shards(folder, make_whole(1))
    save_shards(folder, make_whole(2), [{"layer.bias.exp_avg[1:5]": torch.ones(4)}, {}])
    alter(save_shards(folder, make_whole(3)) / SHARDS[0])

    with pytest.raises(ConfigError, match=r"--from-step 1$"):
        load_for_resume(folder)


def test_checkpoints_in_shards_are_pruned_and_cut(folder):
    for step in range(1, 5):
        save_shards(folder, make_whole(step))

    prune(folder, 2, best_step=1)
    cut_after(folder, 3)

    assert names(folder) == ["step-00000001", "step-00000003"]


# Damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (alter, "does not have the hash in manifest.json"),
        (truncate, "has 96 bytes instead of the "),
        (remove, "cannot be read: No such file or directory"),
    ],
)
@pytest.mark.parametrize("name", SHARDS)
def test_a_damaged_shard_is_named(folder, name, damage, words):
    path = save_shards(folder, make_whole(5))
    damage(path / name)

    with pytest.raises(ConfigError, match=f"^checkpoint {path} is damaged: {name} {words}"):
        load(path)


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_shard_that_the_manifest_does_not_list_is_named(folder, is_removed):
    path = save_shards(folder, make_whole(5))
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    del manifest["files"][SHARDS[2]]
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    if is_removed:
        (path / SHARDS[2]).unlink()

    with pytest.raises(ConfigError, match=f"^checkpoint {path} is damaged: {SHARDS[2]} is not in its manifest.json$"):
        load(path)


def test_a_shard_of_another_set_is_named(folder):
    path = save_shards(folder, make_whole(5))
    (path / "optimizer.5-of-8.safetensors").write_bytes((path / SHARDS[0]).read_bytes())

    with pytest.raises(ConfigError, match=r"is damaged: optimizer.5-of-8.safetensors is not in its manifest.json$"):
        load(path)


FIRST, SECOND = "optimizer.0-of-2.safetensors", "optimizer.1-of-2.safetensors"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"bias.step": 1.0}, {"bias.step": 2.0}, f"bias.step differs between {FIRST} and {SECOND}"),
        ({"bias.m[0:3]": [1.0] * 3}, {"bias.m[4:5]": [1.0]}, "elements 3 to 3 of layer.bias.m are missing"),
        ({"bias.m[2:3]": [1.0]}, {"bias.m[3:5]": [1.0] * 2}, "elements 0 to 1 of layer.bias.m are missing"),
        ({"bias.m[0:1]": [1.0]}, {"bias.m[1:3]": [1.0] * 2}, "elements 3 to 4 of layer.bias.m are missing"),
        (
            {"bias.m[0:3]": [1.0] * 3},
            {"bias.m[1:5]": [1.0] * 4},
            "elements 1 to 2 of layer.bias.m are stored twice, or lie beyond the end of the parameter",
        ),
        (
            {"bias.m[0:3]": [1.0] * 3},
            {"bias.m[3:6]": [1.0] * 3},
            "elements 5 to 5 of layer.bias.m are stored twice, or lie beyond the end of the parameter",
        ),
        ({"bias.m[0:5]": [1.0] * 5}, {"bias.m[0:5]": [1.0] * 5}, f"bias.m[0:5] is in both {FIRST} and {SECOND}"),
        ({"bias.m[0:5]": [1.0] * 5}, {"bias.m": [1.0] * 5}, "layer.bias.m is stored both whole and in spans"),
        (
            {"bias.m[0:2]": [1.0] * 2},
            {"bias.m[2:5]": [1.0] * 2},
            "bias.m[2:5] has type torch.float32 and shape (2,)",
        ),
        ({"bias.m[0:3]": [1.0] * 3}, {"bias.m[3:5]": [1, 2]}, "bias.m[3:5] has type torch.int64 and shape (2,)"),
        ({"gone.m[0:3]": [1.0] * 3}, {"gone.m[4:5]": [1.0]}, "elements 3 to 3 of layer.gone.m are missing"),
    ],
)
def test_shards_that_do_not_fit_together_are_refused(folder, first, second, words):
    shards = [{f"layer.{label}": torch.tensor(each) for label, each in shard.items()} for shard in (first, second)]
    path = save_shards(folder, make_whole(5), shards)

    with pytest.raises(ConfigError) as caught:
        load(path)

    assert str(caught.value) in {f"checkpoint {path} is damaged: {prefix}{words}" for prefix in ("", "layer.")}


# Damage with hashes that are right


def drop(ending):
    return lambda found: {label: found[label] for label in found if not label.endswith(ending)}


@pytest.mark.parametrize(
    ("rank", "change", "words"),
    [
        (0, lambda _: {}, "elements 0 to 2 of a.m are missing"),
        (1, drop("[3:6]"), "a.m is torch.float32 of shape (3,) instead of torch.float32 of shape (6,)"),
        (2, lambda _: {}, "b.m is missing"),
        (2, drop("step"), "b.step is missing"),
        (3, lambda _: {}, "c.table is missing"),
        (3, lambda found: {**found, "c.other": found["c.table"]}, "it has c.other, which does not belong there"),
        (
            3,
            lambda found: {"c.table": found["c.table"]._replace(shape=[3, 2])},
            "c.table is torch.float32 of shape (3, 2) instead of torch.float32 of shape (2, 3)",
        ),
    ],
)
def test_shards_must_have_the_state_that_was_saved(folder, rank, change, words):
    count = torch.tensor(7.0)
    shards = [
        {"a.m[0:3]": torch.ones(3), "a.step": count},
        {"a.m[3:6]": torch.ones(3), "a.step": count},
        {"b.m[0:2]": torch.ones(2), "b.step": count},
        {"c.table": torch.ones(2, 3)},
    ]
    path = save_shards(folder, make_whole(5), shards)
    assert load(path).files["optimizer"].keys() == {label for shard in shards for label in shard}

    rewrite_tensors(path / SHARDS[rank], change)
    repair_hashes(path)

    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == f"checkpoint {path} is damaged: {words}"


# Folders that are not one


def test_a_rank_that_does_not_see_rank_0s_folder_is_named_on_all(tmp_path):
    whole, folders = make_whole(5), [tmp_path / "first"] * 2 + [tmp_path / "other", tmp_path / "first"]

    errors = save_by_threads(folders, whole, cut(whole.files["optimizer"]))

    assert all(isinstance(error, ConfigError) for error in errors)
    expected = f"rank 2 does not see the {tmp_path}/first of rank 0: all ranks must see one folder"
    assert str(errors[0]) == expected
    assert names(tmp_path / "first") == []


def test_a_shard_that_rank_0_does_not_see_is_named(tmp_path, monkeypatch):
    whole, folders = make_whole(5), [tmp_path / "first", tmp_path / "other"]
    (tmp_path / "other" / ".step-00000005.7.new").mkdir(parents=True)
    monkeypatch.setattr(draft.secrets, "randbits", lambda _: 7)

    error, _ = save_by_threads(folders, whole, cut(whole.files["optimizer"], 2))

    assert isinstance(error, ConfigError)
    assert str(error) == f"rank 1's shard is not in {tmp_path}/first of rank 0: all ranks must see one folder"
    assert names(tmp_path / "first") == []
