"""The names by which scripts for Determined's Core API ask, and what those are told that are not here."""

import pytest

import cairn


def test_the_storage_is_called_as_in_determined_too(tmp_path):
    with cairn.core.init(checkpoint_storage=tmp_path / "a") as ctx:
        with ctx.checkpoint.store_path({"steps_completed": 1}) as (path, id):
            (path / "x").write_text("1")
    with cairn.core.init(storage=tmp_path / "a") as ctx:
        assert ctx.latest_checkpoint == id
    with pytest.raises(cairn.Invalid, match="two names of one thing"):
        cairn.core.init(storage=tmp_path / "a", checkpoint_storage=tmp_path / "b")


def test_parts_that_are_not_here_say_what_to_write(tmp_path):
    with cairn.core.init(storage=tmp_path / "a") as ctx:
        with pytest.raises(AttributeError, match="no searcher: a script trains to its end"):
            ctx.searcher  # noqa: B018
        with pytest.raises(AttributeError, match="no profiler: report what you measure"):
            ctx.profiler  # noqa: B018
        assert not hasattr(ctx, "nonsense")
