"""What each rank of the processes that test_dcp.py starts does. They are forked from one process
that has imported this, because importing torch takes seconds."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from cairn import _native
from cairn.integrations.dcp import CairnReader, CairnWriter


def whole(step, *shape, dtype=torch.float32):
    """A tensor that depends on the step, the same on every rank."""
    count = int(torch.tensor(shape).prod())
    return (torch.arange(count, dtype=torch.float64) * 0.5 + step).reshape(shape).to(dtype)


def state(mesh, step):
    """Uneven shards along both dimensions, replicas, plain tensors, and values."""
    return {
        "model": {
            "rows": distribute_tensor(whole(step, 7, 3), mesh, [Shard(0)]),
            "columns": distribute_tensor(whole(step + 1, 2, 5), mesh, [Shard(1)]),
            "replica": distribute_tensor(whole(step + 2, 4), mesh, [Replicate()]),
            "half": distribute_tensor(whole(step, 9, dtype=torch.bfloat16), mesh, [Shard(0)]),
            "plain": whole(step + 3, 3, 2),
            "scalar": torch.tensor(float(step)),
        },
        "list": [whole(step, 2), {"x": whole(step, 3)}],
        "lr": 0.125 * step,
        "names": ["a", "b", step],
        f"only_{dist.get_rank()}": {"position": dist.get_rank() + step},
    }


def blank(mesh):
    made = state(mesh, 0)
    for value in made["model"].values():
        (value.to_local() if isinstance(value, DTensor) else value).fill_(-1)
    made["list"][0].fill_(-1)
    made["list"][1]["x"].fill_(-1)
    return made


def check(found, mesh, step, own=True):
    wanted = state(mesh, step)
    for name, tensor in wanted["model"].items():
        got = found["model"][name]
        full = got.full_tensor() if isinstance(got, DTensor) else got
        want = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(full, want), (name, full, want)
    assert torch.equal(found["list"][0], wanted["list"][0])
    assert torch.equal(found["list"][1]["x"], wanted["list"][1]["x"])
    assert (found["lr"], found["names"]) == (wanted["lr"], wanted["names"])
    if own:
        key = f"only_{dist.get_rank()}"
        assert found[key] == wanted[key]


def save(directory, mesh):
    with CairnWriter(directory) as writer:
        for step in (10, 20):
            dcp.save(state(mesh, step), storage_writer=writer, checkpoint_id=str(step))


def load_ten(directory, mesh):
    found = blank(mesh)
    del found[f"only_{dist.get_rank()}"]
    reader = CairnReader(directory)
    dcp.load(found, storage_reader=reader)
    assert reader.info.step == 10
    check(found, mesh, 10, own=False)


class Late(CairnReader):
    """Rank 1 does not see the newest yet, as where a listing is behind."""

    def read_metadata(self, *args, **kwargs):
        if dist.get_rank() != 1:
            return super().read_metadata(*args, **kwargs)
        return self._look(10, "")


def load_late(directory, mesh):
    found = blank(mesh)
    del found[f"only_{dist.get_rank()}"]
    reader = Late(directory)
    dcp.load(found, storage_reader=reader)
    assert reader.info.step == 20
    check(found, mesh, 20, own=False)


def load(directory, mesh, keep_own=False):
    found = blank(mesh)
    for key in [k for k in found if k.startswith("only_") and not keep_own]:
        del found[key]
    dcp.load(found, storage_reader=CairnReader(directory))
    check(found, mesh, 20, own=keep_own)
    older = blank(mesh)
    for key in [k for k in older if k.startswith("only_") and not keep_own]:
        del older[key]
    dcp.load(older, storage_reader=CairnReader(directory), checkpoint_id="10")
    check(older, mesh, 10, own=keep_own)


def carry_on(directory, mesh, step, then):
    """Loads what another number of ranks saved, and saves the next with this one."""
    found = blank(mesh)
    own = f"only_{dist.get_rank()}"
    del found[own]
    reader = CairnReader(directory)
    dcp.load(found, storage_reader=reader)
    assert reader.info.step == step
    check(found, mesh, step, own=False)
    for tensor in found["model"].values():  # what is saved next comes from what was loaded
        (tensor.to_local() if isinstance(tensor, DTensor) else tensor).add_(then - step)
    found["list"][0].add_(then - step)
    found["list"][1]["x"].add_(then - step)
    wanted = state(mesh, then)
    found.update({key: wanted[key] for key in ("lr", "names", own)})
    with CairnWriter(directory, keep_last=None) as writer:
        dcp.save(found, storage_writer=writer, checkpoint_id=str(then))


def load_own(directory, mesh):
    load(directory, mesh, keep_own=True)


def asynchronous(directory, mesh):
    with CairnWriter(directory) as writer:
        live = state(mesh, 10)
        for step in (10, 20):
            live = state(mesh, step)
            future = dcp.async_save(live, storage_writer=writer, checkpoint_id=str(step))
            for tensor in live["model"].values():  # what comes after the call is not in it
                (tensor.to_local() if isinstance(tensor, DTensor) else tensor).zero_()
            future.result()


def _fsdp(mesh):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 4))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def _train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        data = torch.sin(torch.arange(20.0).reshape(4, 5) + step)  # the same on every rank
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def fsdp_save(directory, mesh):
    model, optimizer = _fsdp(mesh)
    _train(model, optimizer, 3)
    weights, moments = get_state_dict(model, optimizer)
    with CairnWriter(directory) as writer:
        dcp.save({"model": weights, "optimizer": moments}, storage_writer=writer, checkpoint_id="3")


def _fsdp_loaded(directory, mesh):
    """A model and its optimizer that had other values before they were loaded."""
    model, optimizer = _fsdp(mesh)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().zero_()
    weights, moments = get_state_dict(model, optimizer)
    found = {"model": weights, "optimizer": moments}
    dcp.load(found, storage_reader=CairnReader(directory))
    set_state_dict(
        model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"]
    )
    return model, optimizer


def fsdp_resume(directory, mesh):
    model, optimizer = _fsdp_loaded(directory, mesh)
    _train(model, optimizer, 2, first=3)
    straight, straight_optimizer = _fsdp(mesh)
    _train(straight, straight_optimizer, 5)
    for a, b in zip(model.parameters(), straight.parameters()):
        assert torch.allclose(a.full_tensor(), b.full_tensor(), rtol=1e-6, atol=1e-7)


def _whole_fsdp(model, optimizer):
    """{name: whole tensor} of weights and moments, on all ranks."""
    weights, moments = get_state_dict(model, optimizer)
    named = dict(weights)
    for parameter, slots in moments["state"].items():
        named.update({f"{parameter} {slot}": tensor for slot, tensor in slots.items()})
    return {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in named.items()}


def _fsdp_write(directory, model, optimizer, step):
    weights, moments = get_state_dict(model, optimizer)
    with CairnWriter(directory, keep_last=None) as writer:
        state = {"model": weights, "optimizer": moments}
        dcp.save(state, storage_writer=writer, checkpoint_id=str(step))
    whole = _whole_fsdp(model, optimizer)
    if dist.get_rank() == 0:
        torch.save(whole, f"{directory}-{step}.pt")


def fsdp_begin(directory, mesh):
    """The first of a chain of trainings, each by another number of ranks."""
    model, optimizer = _fsdp(mesh)
    _train(model, optimizer, 3)
    _fsdp_write(directory, model, optimizer, 3)


def fsdp_carry_on(directory, mesh, step):
    """The next of them: what it loads is what the one before had, to the bit."""
    model, optimizer = _fsdp_loaded(directory, mesh)
    had, found = torch.load(f"{directory}-{step}.pt"), _whole_fsdp(model, optimizer)
    assert had.keys() == found.keys() and len(had) == 16, list(had)  # 4 parameters, 3 slots of each
    for name, tensor in had.items():
        assert torch.equal(tensor, found[name]), name
    if mesh.size() == 3:
        empty = [n for n, p in model.named_parameters() if p.to_local().numel() == 0]
        assert empty == (["2.weight", "2.bias"] if dist.get_rank() == 2 else [])
    _train(model, optimizer, 2, first=step)
    _fsdp_write(directory, model, optimizer, step + 2)
    straight = _fsdp(mesh)
    _train(*straight, step + 2)
    ended = _whole_fsdp(model, optimizer)
    for name, tensor in _whole_fsdp(*straight).items():
        # Means over another number of ranks are rounded otherwise.
        assert torch.allclose(ended[name], tensor, rtol=1e-5, atol=1e-6), name


def killed(directory, mesh, rank, step):
    """Saves step 10, then one rank is killed in the middle of step 20."""
    if rank == dist.get_rank():
        _native.kill_at(step, 2)
    with CairnWriter(directory) as writer:
        dcp.save(state(mesh, 10), storage_writer=writer, checkpoint_id="10")
        live = state(mesh, 20)
        live["model"]["big"] = distribute_tensor(whole(20, 1 << 18, 4), mesh, [Shard(0)])
        dcp.save(live, storage_writer=writer, checkpoint_id="20")


def run(task, rank, world, directory, rendezvous, *arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    globals()[task](directory, mesh, *arguments)
    dist.barrier()
    dist.destroy_process_group()
