"""torch modules on top of tables."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cairn  # noqa: E402
import cairn.torch  # noqa: E402
from cairn import initializers, optimizers  # noqa: E402


def pair(rows=50, dim=6, lr=0.1):
    """A table and a torch embedding with the same weights."""
    table = cairn.EmbeddingTable(
        "t", dim, optimizer=optimizers.SGD(lr), initializer=initializers.Normal(0, 1)
    )
    theirs = torch.nn.Embedding(rows, dim)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(table.lookup(np.arange(rows))))
    return table, theirs


def test_embedding_trains_as_torchs_does():
    table, theirs = pair()
    ours = cairn.torch.Embedding(table)
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        ids = torch.randint(0, 50, (8, 3), generator=generator)
        ours(ids).square().sum().backward()
        sgd.zero_grad()
        theirs(ids).square().sum().backward()
        sgd.step()
    np.testing.assert_allclose(
        table.lookup(np.arange(50)), theirs.weight.detach().numpy(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_are_torchs(mode):
    table, theirs = pair()
    ours = cairn.torch.EmbeddingBag(table, mode=mode)
    bag = torch.nn.EmbeddingBag.from_pretrained(theirs.weight, freeze=False, mode=mode)
    flat, offsets = torch.tensor([1, 2, 3, 3, 9]), torch.tensor([0, 2, 2])
    torch.testing.assert_close(ours(flat, offsets), bag(flat, offsets))
    table_ids = torch.tensor([[1, 2], [3, 4]])
    ours(table_ids).square().sum().backward()
    bag(table_ids).square().sum().backward()
    want = bag.weight.detach() - 0.1 * bag.weight.grad
    np.testing.assert_allclose(table.lookup(np.arange(50)), want.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("layout", ["offsets", "last offset", "rows"])
def test_padding_counts_in_no_bag_as_in_torchs(mode, layout):
    table, theirs = pair()
    settings = dict(mode=mode, padding_idx=3, include_last_offset=layout == "last offset")
    ours = cairn.torch.EmbeddingBag(table, **settings)
    bag = torch.nn.EmbeddingBag.from_pretrained(theirs.weight, freeze=False, **settings)
    given = {
        "offsets": (torch.tensor([1, 3, 3, 3, 9, 4]), torch.tensor([0, 2, 3, 3])),
        "last offset": (torch.tensor([1, 3, 3, 3, 9, 4]), torch.tensor([0, 2, 3, 3, 6])),
        "rows": (torch.tensor([[1, 3], [3, 3], [9, 9]]),),
    }[layout]
    torch.testing.assert_close(ours(*given), bag(*given))
    ours(*given).square().sum().backward()
    bag(*given).square().sum().backward()
    want = bag.weight.detach() - 0.1 * bag.weight.grad
    np.testing.assert_allclose(table.lookup(np.arange(50)), want.numpy(), rtol=1e-5, atol=1e-6)


def test_weights_of_padded_samples_get_no_gradient():
    table, theirs = pair()
    ids, offsets = torch.tensor([4, 5, 6]), torch.tensor([0, 1])
    gradients = []
    for module in (
        cairn.torch.EmbeddingBag(table, mode="sum", padding_idx=5),
        torch.nn.EmbeddingBag.from_pretrained(theirs.weight, mode="sum", padding_idx=5),
    ):
        weights = torch.tensor([0.5, 2.0, 1.0], requires_grad=True)
        module(ids, offsets, per_sample_weights=weights).sum().backward()
        gradients.append(weights.grad)
    torch.testing.assert_close(*gradients)
    assert gradients[0][1] == 0


def test_a_batch_without_bags_is_empty():
    table, _ = pair()
    nothing = torch.zeros(0, dtype=torch.int64)
    assert cairn.torch.EmbeddingBag(table)(nothing, nothing).shape == (0, 6)
    bag = cairn.torch.EmbeddingBag(table, include_last_offset=True)
    assert bag(nothing, torch.tensor([0])).shape == (0, 6)
    for wrong in (nothing, torch.tensor([0, 1]), torch.tensor([0, 3])):
        with pytest.raises(cairn.Invalid, match="the last of the offsets is the number of ids, 2"):
            bag(torch.tensor([1, 2]), wrong)
    with pytest.raises(cairn.Invalid, match="begin with 0"):
        cairn.torch.EmbeddingBag(table)(torch.tensor([1, 2]), nothing)


def test_weighted_sums():
    table, theirs = pair()
    weights = torch.tensor([0.5, 2.0, 1.0])
    ids, offsets = torch.tensor([4, 5, 6]), torch.tensor([0, 1])
    ours = cairn.torch.EmbeddingBag(table, mode="sum")(ids, offsets, weights)
    bag = torch.nn.EmbeddingBag.from_pretrained(theirs.weight, mode="sum")
    torch.testing.assert_close(ours, bag(ids, offsets, per_sample_weights=weights))


def test_evaluation_makes_no_rows():
    table, _ = pair()
    module = cairn.torch.Embedding(table)
    with torch.no_grad():
        module(torch.tensor([1000]))
    module.eval()
    assert not module(torch.tensor([1001])).requires_grad
    assert table.size() == 50


def test_padding_is_zero_and_not_trained():
    table, _ = pair()
    module = cairn.torch.Embedding(table, padding_idx=0)
    before = table.lookup([0])
    out = module(torch.tensor([[0, 1], [2, 0]]))
    assert not out[0, 0].any() and out[0, 1].any() and not out[1, 1].any()
    out.sum().backward()
    np.testing.assert_array_equal(table.lookup([0]), before)


def test_wrong_input_is_refused():
    table, _ = pair()
    with pytest.raises(cairn.Invalid, match="integers"):
        cairn.torch.Embedding(table)(torch.tensor([0.5]))
    bag = cairn.torch.EmbeddingBag(table)
    with pytest.raises(cairn.Invalid, match="offsets"):
        bag(torch.tensor([1, 2]))
    with pytest.raises(cairn.Invalid, match="offsets"):
        bag(torch.tensor([1, 2]), torch.tensor([1]))
    with pytest.raises(cairn.Invalid, match="mode"):
        cairn.torch.EmbeddingBag(table, mode="median")


def test_a_model_of_two_towers_learns():
    torch.manual_seed(0)
    settings = dict(optimizer=optimizers.Adagrad(0.5), initializer=initializers.Normal(0, 0.3))
    users = cairn.EmbeddingTable("users", 8, **settings)
    items = cairn.EmbeddingTable("items", 8, **settings)
    user, item = cairn.torch.Embedding(users), cairn.torch.Embedding(items)
    head = torch.nn.Linear(1, 1)
    torch.nn.init.ones_(head.weight)
    dense = torch.optim.SGD(head.parameters(), lr=0.1)
    losses = []
    for _ in range(300):
        u, i = torch.randint(0, 20, (64,)), torch.randint(0, 20, (64,))
        score = head((user(u * 10**9) * item(i - 10)).sum(-1, keepdim=True)).squeeze(-1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            score, ((u + i) % 2).to(torch.float32)
        )
        dense.zero_grad()
        loss.backward()
        dense.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


# Rows belong to their module ----------


def _words(name="words"):
    table = cairn.EmbeddingTable(name, 4, optimizer=cairn.optimizers.Adagrad(0.1))
    return torch.nn.Sequential(cairn.torch.Embedding(table), torch.nn.Linear(4, 1)), table


def _step(model, batch):
    model(batch).square().mean().backward()


def test_a_trainer_saves_the_rows_of_its_model(tmp_path):
    batches = [torch.arange(5), torch.arange(3, 9), torch.arange(7)]

    def train(where, stop_after=None):
        torch.manual_seed(0)
        model, table = _words()
        config = cairn.CheckpointConfig(where, step_interval=1)
        trainer = cairn.Trainer(model, _step, checkpoint_config=config)

        def handler(event):
            if isinstance(event, cairn.EndStepEvent) and event.step == stop_after:
                trainer.stop()

        trainer.train(1, batches, handler)
        return {k: v["weights"].tolist() for k, v in table.rows().items()}

    train(tmp_path / "stopped", stop_after=1)
    assert train(tmp_path / "stopped") == train(tmp_path / "whole")


@pytest.mark.parametrize("captured", [False, True], ids=["module", "capture"])
def test_a_manager_saves_and_fills_the_rows_of_modules(directory, captured):
    def state(model):
        return {"train": [cairn.torch.capture(model=model) if captured else model]}

    model, table = _words()
    _step(model, torch.arange(5))
    with cairn.CheckpointManager(directory) as manager:
        manager.save(1, state(model), tables=[table]).wait()  # named as well: stored once
        _step(model, torch.arange(3))
        info = manager.save(2, state(model), kind="cumulative").wait()
        assert [(t["name"], t["rows"]) for t in info.tables] == [("words", 3)]
    other, empty = _words()
    with cairn.CheckpointManager(directory, read_only=True) as manager:
        restored = manager.restore(state(other))
    assert restored.skipped == []
    assert empty.lookup(torch.arange(5)).tolist() == table.lookup(torch.arange(5)).tolist()


def test_rows_of_a_skipped_module_are_left_alone(directory):
    model, _ = _words()
    _step(model, torch.arange(5))
    with cairn.CheckpointManager(directory) as manager:
        manager.save(1, {"a": model, "n": 1}).wait()
        other, empty = _words()
        skipped = manager.restore({"a": other, "n": None}, skip=["a"]).skipped
    assert empty.size() == 0
    assert {name for name, _ in skipped} >= {"words"}


def test_a_save_without_rows_does_not_fit_a_module_that_has_them(directory):
    model, _ = _words()
    with cairn.CheckpointManager(directory) as manager:
        manager.save(1, {"a": model.state_dict()}).wait()
        with pytest.raises(cairn.Mismatch) as raised:
            manager.restore({"a": model})
    assert raised.value.missing == ["words"]


def test_a_session_saves_the_rows_of_modules_in_its_state(directory):
    for begins_with in (0, 5):
        model, table = _words()
        with cairn.train.MonitoredTrainingSession(
            directory, tables=[], state={"model": model}
        ) as session:
            assert table.size() == begins_with
            session.run(lambda step, model=model: _step(model, torch.arange(5)))


def test_variables_by_role_do_not_leave_rows_out_in_silence(tmp_path):
    model, _ = _words()
    for save in (cairn.io.save_params, cairn.io.save_persistables, cairn.io.save_vars):
        with pytest.raises(cairn.Invalid, match="'words'.*CheckpointManager.*predicate"):
            save(tmp_path / "all", model)
    saved = cairn.io.save_params(tmp_path / "some", model, predicate=lambda v: True)
    assert saved.names == ["1.bias", "1.weight"], "asked for: the dense ones alone"


def test_what_is_no_table_and_what_are_no_ids_are_named():
    with pytest.raises(cairn.Invalid, match="not of a NoneType"):
        cairn.torch.Embedding(None)
    table, _ = pair()
    with pytest.raises(cairn.Invalid, match="padding_idx must be an integer"):
        cairn.torch.Embedding(table, padding_idx="0")
    for ids in ([1, 2], 5, np.array([1])):
        with pytest.raises(cairn.Invalid, match="ids must be a tensor, not a"):
            cairn.torch.Embedding(table)(ids)
        with pytest.raises(cairn.Invalid, match="ids must be a tensor, not a"):
            cairn.torch.EmbeddingBag(table)(ids)
    with pytest.raises(cairn.Invalid, match="not of a NoneType"):
        cairn.torch.EmbeddingBag(None)
    bag = cairn.torch.EmbeddingBag(table, mode="sum")
    ids = torch.tensor([1, 2])
    with pytest.raises(cairn.Invalid, match="offsets must be a tensor, not a list"):
        bag(ids, [0])
    with pytest.raises(cairn.Invalid, match="offsets must be integers of 1 dimension"):
        bag(ids, torch.tensor([0.0]))
    with pytest.raises(cairn.Invalid, match="per_sample_weights must be a tensor, not a list"):
        bag(ids, torch.tensor([0]), [1.0, 2.0])
    with pytest.raises(cairn.Invalid, match="3 per_sample_weights for 2 ids"):
        bag(ids, torch.tensor([0]), torch.ones(3))
