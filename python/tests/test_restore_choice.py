"""Which checkpoint is restored, and what happens when it is damaged, moved or someone else's."""

import glob
import json
import os
import shutil

import numpy as np
import pytest

import cairn


def state(step):
    return {"w": np.full(50_000, step, np.float32), "small": np.full(3, step), "step": step}


def blank():
    return {"w": np.zeros(50_000, np.float32), "small": np.zeros(3, np.int64), "step": None}


def data_file(checkpoint):
    (file,) = glob.glob(os.path.join(checkpoint, "__model__", "*.safetensors"))
    return file


def flip(path, position):
    """Flips a byte of a file, leaving other links to it alone."""
    with open(path, "rb") as file:
        content = bytearray(file.read())
    content[position] ^= 0x40
    os.unlink(path)
    with open(path, "wb") as file:
        file.write(content)


@pytest.fixture
def three(directory):
    """A repository with steps 1, 2 and 3."""
    with cairn.CheckpointManager(directory, job="mine") as m:
        for step in (1, 2, 3):
            m.save(step, state(step), blocking=True)
    return directory


@pytest.fixture
def reader(three):
    with cairn.CheckpointManager(three, read_only=True) as m:
        yield m


def test_the_latest_is_restored(reader):
    assert reader.restore(blank()).step == 3


def test_a_step_is_restored(reader):
    given = blank()
    assert reader.restore(given, step=2).step == 2
    assert given["w"][0] == 2 and given["step"] == 2


def test_an_id_is_restored(reader):
    first = reader.list()[0]
    restored = reader.restore(id=first.id)
    assert restored.info.id == first.id and restored.state["step"] == 1


def test_a_path_is_restored(reader):
    assert reader.restore(path=reader.list()[1].path).step == 2


@pytest.mark.parametrize(
    "asked", [{"step": 9}, {"id": "0" * 32}, {"path": "/nowhere/at/all"}], ids=str
)
def test_what_does_not_exist_is_not_found(reader, asked):
    with pytest.raises(cairn.NotFound):
        reader.restore(**asked)


def test_only_one_way_of_asking_at_a_time(reader):
    with pytest.raises(cairn.Invalid, match="one of"):
        reader.restore(step=1, id="x")


def test_none_when_nothing_was_ever_committed(directory):
    with cairn.CheckpointManager(directory) as m:
        given = blank()
        assert m.restore(given) is None
        assert m.latest() is None and m.list() == []
    assert given["step"] is None


def test_going_back_makes_the_new_branch_the_latest(three):
    with cairn.CheckpointManager(three) as m:
        assert m.restore(step=1).step == 1
        m.save(2, state(20), blocking=True)
        assert m.restore().state["step"] == 20


# Damage ----------


def test_a_damaged_latest_falls_back_and_says_so(three):
    with cairn.CheckpointManager(three) as m:
        latest = m.latest()
        flip(data_file(latest.path), -1000)
        given = blank()
        restored = m.restore(given)
    assert restored.step == 2
    assert given["w"].min() == given["w"].max() == 2 and given["step"] == 2
    assert len(restored.fallbacks) == 1
    assert os.path.basename(latest.path) in restored.fallbacks[0]
    [(name, reason)] = restored.skipped
    assert name == os.path.basename(latest.path) and "checksum" in reason


@pytest.mark.parametrize("what", ["data", "state", "manifest", "missing"])
def test_every_kind_of_damage_falls_back(three, what):
    with cairn.CheckpointManager(three) as m:
        latest = m.latest().path
        file = {
            "data": data_file(latest),
            "state": os.path.join(latest, "rank_0", "state.json"),
            "manifest": os.path.join(latest, "manifest.json"),
            "missing": data_file(latest),
        }[what]
        if what == "missing":
            os.unlink(file)
        else:
            flip(file, 40)
        assert m.restore(blank()).step == 2


def test_a_damaged_step_that_was_asked_for_is_an_error(three):
    with cairn.CheckpointManager(three) as m:
        flip(data_file(m.latest().path), -1000)
        given = blank()
        with pytest.raises(cairn.Corruption, match="checkpoint_000003"):
            m.restore(given, step=3)
    assert given["step"] is None


def test_damage_found_while_filling_lists_what_was_overwritten(directory):
    big = {name: np.full(1 << 20, 1.0) for name in "abcd"}
    with cairn.CheckpointManager(directory) as m:
        m.save(1, big, blocking=True)
        flip(data_file(m.latest().path), -10)
        given = {name: np.zeros(1 << 20) for name in "abcd"}
        with pytest.raises(cairn.Corruption) as damaged:
            m.restore(given, step=1)
    touched = [name for name in "abcd" if given[name].any()]
    assert touched, "the damage is at the end: something was filled before"
    listed = str(damaged.value).split("overwritten", 1)[1]
    for name in touched:
        assert name in listed


def test_atomic_changes_nothing_when_there_is_damage(directory):
    big = {name: np.full(1 << 20, 1.0) for name in "abcd"}
    with cairn.CheckpointManager(directory) as m:
        m.save(1, big, blocking=True)
        flip(data_file(m.latest().path), -10)
        given = {name: np.zeros(1 << 20) for name in "abcd"}
        with pytest.raises(cairn.Corruption):
            m.restore(given, step=1, atomic=True)
    assert not any(a.any() for a in given.values())


def test_atomic_restores_what_is_sound(reader):
    given = blank()
    assert reader.restore(given, atomic=True).step == 3
    assert given["w"][0] == 3


def test_none_readable_is_an_error_that_lists_each(three):
    for file in glob.glob(os.path.join(three, "checkpoint_*", "__model__", "*.safetensors")):
        flip(file, -1000)
    with cairn.CheckpointManager(three) as m, pytest.raises(cairn.Corruption) as damaged:
        m.restore(blank())
    for name in ("checkpoint_000001", "checkpoint_000002", "checkpoint_000003"):
        assert name in str(damaged.value)


def test_training_goes_on_after_a_fallback(three):
    with cairn.CheckpointManager(three) as m:
        flip(data_file(m.latest().path), -1000)
        assert m.restore().step == 2
        m.save(3, state(30), blocking=True)
        assert m.restore().state["step"] == 30


@pytest.mark.parametrize(
    "text",
    [
        b'{"cairn_state":2,"state":null}',
        b'{"cairn_state":1,"state":{"dict":[1]}}',
        b'{"cairn_state":1,"state":{"tensor":{"name":"w"}}}',
        b'{"cairn_state":1,"state":{"no such tag":1}}',
        b'{"cairn_state":1,"state":{"dict":{},"odict":{}}}',
        b'{"cairn_state":1,"state":{"dict_items":[[{"dict":{}},1]]}}',
        b'{"cairn_state":1,"state":{"int":"zz"}}',
        b'{"cairn_state":1,"state":{"bytes":"*"}}',
        b'{"cairn_state":1,"state":{"rng":[]}}',
        b'{"cairn_state":1,"state":{"numpy":["O","00"]}}',
        b'{"cairn_state"' + b"[" * 100_000,
    ],
)
def test_a_state_file_of_any_content_is_refused_in_order(text):
    """The file is covered by checksums; what another program wrote into it must not break us."""
    from cairn import _plan, _tree

    with pytest.raises(cairn.Error):
        plan = _plan.Plan(
            _tree.Stored(text, "here"), None, anything=True, strict=True, rename={}, skip=set()
        )
        plan.finish([])


# Moved, copied, foreign ----------


def test_a_repository_can_be_moved(three, tmp_path):
    moved = tmp_path / "elsewhere" / "renamed"
    moved.parent.mkdir()
    os.rename(three, moved)
    with cairn.CheckpointManager(moved) as m:
        given = blank()
        assert m.restore(given).step == 3 and given["w"][0] == 3
        m.save(4, state(4), blocking=True)
        m.wait()
        assert [i.step for i in m.list()] == [2, 3, 4]
    assert cairn.verify(moved).ok


def test_a_repository_can_be_copied(three, tmp_path):
    copied = shutil.copytree(three, tmp_path / "copy")
    assert cairn.load(copied)["step"] == 3


def test_a_directory_name_is_not_trusted(three):
    os.rename(os.path.join(three, "checkpoint_000003"), os.path.join(three, "checkpoint_000999"))
    with cairn.CheckpointManager(three) as m:
        assert m.latest().step == 3
        assert [i.step for i in m.list()] == [1, 2, 3]
        assert m.restore(step=3).state["step"] == 3
        with pytest.raises(cairn.NotFound):
            m.restore(step=999)


@pytest.fixture
def with_foreign(three, tmp_path):
    """`three`, with a later checkpoint of another job copied in."""
    other = str(tmp_path / "other")
    with cairn.CheckpointManager(other, job="theirs") as m:
        path = m.save(50, state(50), blocking=True).wait().path
    shutil.copytree(path, os.path.join(three, "checkpoint_000050"))
    return three


def test_another_jobs_checkpoint_is_listed_as_foreign(with_foreign):
    with cairn.CheckpointManager(with_foreign, read_only=True) as m:
        assert [(i.step, i.foreign) for i in m.list() if i.foreign] == [(50, True)]


def test_another_jobs_checkpoint_is_never_chosen(with_foreign):
    with cairn.CheckpointManager(with_foreign, read_only=True) as m:
        assert m.latest().step == 3 and m.restore().step == 3
        with pytest.raises(cairn.NotFound):
            m.restore(step=50)


def test_another_jobs_checkpoint_is_restored_by_path(with_foreign):
    with cairn.CheckpointManager(with_foreign, read_only=True) as m:
        assert m.restore(path=os.path.join(with_foreign, "checkpoint_000050")).state["step"] == 50


def test_foreign_files_are_left_alone(three):
    notes = os.path.join(three, "my notes.txt")
    own = os.path.join(three, "checkpoint_000777", "x")
    os.makedirs(os.path.dirname(own))
    for path in (notes, own):
        with open(path, "w", encoding="utf-8") as file:
            file.write("mine")
    with cairn.CheckpointManager(three, keep_last=1) as m:
        for step in (4, 777, 5):
            m.save(step, state(step), blocking=True)
        assert m.latest().step == 5
    assert os.path.exists(notes) and os.path.exists(own)


# The user's own files ----------


def test_files_come_back(directory, tmp_path):
    (tmp_path / "src" / "sub").mkdir(parents=True)
    (tmp_path / "src" / "a.txt").write_text("A")
    (tmp_path / "src" / "sub" / "b.bin").write_bytes(b"B" * 9000)
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {}, files=tmp_path / "src", blocking=True)
        restored = m.restore()
        assert sorted(restored.files) == ["a.txt", "sub/b.bin"]
        with open(restored.files["sub/b.bin"], "rb") as file:
            assert file.read() == b"B" * 9000
        m.save(
            1, {}, files={"config.json": b"{}", "deep/x": tmp_path / "src" / "a.txt"}, blocking=True
        )
        assert sorted(m.restore().files) == ["config.json", "deep/x"]
        m.save(2, {}, files=[tmp_path / "src" / "a.txt"], blocking=True)
        assert sorted(m.restore().files) == ["a.txt"]


def test_empty_directories_come_back(directory, tmp_path):
    (tmp_path / "src" / "logs" / "old").mkdir(parents=True)
    (tmp_path / "src" / "assets").mkdir()
    (tmp_path / "src" / "a.txt").write_text("A")
    with cairn.CheckpointManager(directory) as m:
        m.save(0, {}, files=tmp_path / "src", blocking=True)
        restored = m.restore()
    assert sorted(restored.files) == ["a.txt", "assets/", "logs/old/"]
    assert os.path.isdir(restored.files["logs/old/"])
    assert cairn.verify(directory).ok


def test_what_is_no_file_in_a_directory_is_refused_by_name(directory, tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "link").symlink_to(tmp_path)
    with cairn.CheckpointManager(directory) as m:
        with pytest.raises(cairn.Invalid, match="src/link' is a link to a directory"):
            m.save(0, {}, files=tmp_path / "src", blocking=True)
        os.unlink(tmp_path / "src" / "link")
        os.mkfifo(tmp_path / "src" / "pipe")
        with pytest.raises(cairn.Invalid, match="src/pipe' is neither a file nor a directory"):
            m.save(0, {}, files=tmp_path / "src", blocking=True)
        assert m.list() == []


@pytest.mark.parametrize(
    "files", [["/no/such/file"], {"x": 3}, {"../up": b"x"}, {"/abs": b"x"}], ids=str
)
def test_files_that_cannot_be_stored_are_refused(directory, files):
    with cairn.CheckpointManager(directory) as m:
        with pytest.raises(cairn.Invalid):
            m.save(0, {}, files=files, blocking=True)
        assert m.list() == []


def test_the_manifest_is_json_for_other_tools(three):
    with open(os.path.join(three, "checkpoint_000003", "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    assert manifest["step"] == 3 and manifest["job"] == "mine"


def test_an_empty_id_or_path_is_not_the_latest(three):
    with cairn.CheckpointManager(three, read_only=True) as manager:
        for choice in ({"id": ""}, {"path": ""}, {"id": 5}, {"path": 5}, {"id": "\udc80"}):
            with pytest.raises(cairn.Invalid):
                manager.restore(**choice)
        with pytest.raises(cairn.Invalid, match="id"):
            manager.pin("")


def test_a_listed_checkpoint_is_as_good_as_its_id(three):
    with cairn.CheckpointManager(three, read_only=True) as manager:
        oldest = manager.list()[0]
        assert manager.restore(id=oldest).step == oldest.step


@pytest.mark.parametrize(
    "arguments",
    [{"rename": ["a"]}, {"rename": {"a": 5}}, {"skip": 5}, {"skip": [5]}, {"tables": 5}],
    ids=str,
)
def test_names_that_are_none_are_refused(three, arguments):
    with cairn.CheckpointManager(three, read_only=True) as manager:
        with pytest.raises(cairn.Invalid, match=next(iter(arguments))):
            manager.restore({}, **arguments)


def test_a_file_whose_name_is_no_unicode_is_refused_by_name(directory, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    with open(os.fsencode(folder) + b"/caf\xe9", "wb"):
        pass
    with cairn.CheckpointManager(directory) as manager:
        for files in (folder, list(folder.iterdir())):
            with pytest.raises(cairn.Invalid, match="caf.*rename"):
                manager.save(1, {}, files=files)
        with pytest.raises(cairn.Invalid, match="files"):
            manager.save(1, {}, files=5)
        assert manager.list() == []
