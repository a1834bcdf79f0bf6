"""Parameter servers from Python: servers and trainers in one process, over real connections."""

import os
import re
import signal
import threading
import time
import warnings

import numpy as np
import pytest

import cairn
import cairn.ps

ADAGRAD = cairn.optimizers.Adagrad(0.1)
ZEROS = cairn.initializers.Constant(0.0)


def start_one(directory, index, count=2, **settings):
    settings = {"full_secs": None, "full_steps": 10, "incremental_steps": 3, **settings}
    return cairn.ps.Server(directory, index=index, num_servers=count, **settings)


def start(directory, count=2, **settings):
    return [start_one(directory, i, count, **settings) for i in range(count)]


def connect(directory, count=2, **settings):
    settings = {"reconnect_timeout": 30.0, **settings}
    return cairn.ps.Client(directory=directory, num_servers=count, **settings)


@pytest.fixture
def servers(directory):
    started = start(directory)
    yield started
    for server in started:
        server.stop()


@pytest.fixture
def client(directory, servers):
    return connect(directory)


def test_a_table_behaves_as_a_local_one(client):
    remote = client.table("users", 4, optimizer=ADAGRAD, seed=7)
    local = cairn.EmbeddingTable("users", 4, optimizer=ADAGRAD, seed=7)
    ids = np.array([[1, -2, 3], [10**18, 1, 5]])
    assert remote.lookup(ids).tobytes() == local.lookup(ids).tobytes()
    grads = np.linspace(-1, 1, 24).reshape(6, 4)
    remote.apply_gradients(ids, grads)
    local.apply_gradients(ids, grads)
    client.end_step()
    assert remote.lookup(ids).tobytes() == local.lookup(ids).tobytes()
    assert remote.size() == len(local) == 5
    remote.assign([3, 99], np.ones((2, 4)))
    assert remote.lookup([99]).tolist() == [[1.0] * 4]
    assert remote.lookup([12345], create=False).shape == (1, 4)
    assert remote.erase([99, 100]) == 1
    assert sorted(key for key, _ in remote.items()) == [-2, 1, 3, 5, 10**18]
    assert remote.rows()[1][2] == 2  # updates


def test_a_table_evicts_as_a_local_one(client):
    rules = [cairn.GlobalStepEvict(steps_to_live=2), cairn.L2WeightEvict(0.01)]
    remote = client.table("users", 4, optimizer=ADAGRAD, seed=7, eviction=rules)
    local = cairn.EmbeddingTable("users", 4, optimizer=ADAGRAD, seed=7, eviction=rules)
    for step in range(9):
        ids = np.arange(step * 3, step * 3 + 8)
        grads = np.linspace(-1, 1, 32).reshape(8, 4) + step
        local.step = step
        for table in (remote, local):
            table.apply_gradients(ids, grads)
        remote.assign([100 + step], np.zeros((1, 4)))
        local.assign([100 + step], np.zeros((1, 4)))
        assert remote.evict(step) is None  # it counts when the step ends
        client.end_step()
        local.evict(step)
    rows = {key: row["weights"].tobytes() for key, row in local.rows().items()}
    assert {key: row[0] for key, row in remote.rows().items()} == rows
    assert min(rows) == 18 and max(rows) < 100


def test_async_evictions_say_what_went(directory):
    servers = start(directory, mode="async")
    client = connect(directory)
    table = client.table(
        "users", 4, optimizer=ADAGRAD, admission=2, eviction=cairn.GlobalStepEvict(1)
    )
    table.assign([1, 2, 3], np.ones((3, 4)))
    table.lookup([10, 11])  # counted, and not admitted yet
    for _ in range(3):
        client.end_step()
    assert table.evict(3) == (3, 2)  # rows, and counts of ids
    assert table.evict(3) == (0, 0)
    assert table.size() == 0
    client.close()
    for server in servers:
        server.stop()


def test_dense_variables_are_whole_again(client):
    values = np.arange(30000, dtype=np.float32).reshape(5000, 6)
    dense = client.dense("w", values, optimizer=cairn.optimizers.SGD(0.5))
    number = client.dense("b", 3.0, optimizer=cairn.optimizers.SGD(0.5))
    assert (dense.pull() == values).all()
    dense.push(np.ones_like(values))
    number.push(2.0)
    assert (dense.pull() == values).all()  # not before the step ends
    client.end_step()
    assert (dense.pull() == values - 0.5).all()
    assert number.pull() == 2.0


def test_dense_variables_may_be_tensors_of_any_float_and_with_a_graph(client):
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(3, 2)
    weight = client.dense("weight", layer.weight, optimizer=cairn.optimizers.SGD(0.5))
    assert weight.shape == (2, 3)
    first = layer.weight.detach().numpy().copy()
    assert weight.pull().tobytes() == first.tobytes()
    half = client.dense("half", torch.ones(3, dtype=torch.bfloat16), optimizer=ADAGRAD)
    assert half.pull().tolist() == [1.0] * 3
    for gradient in (
        torch.ones(2, 3),
        torch.ones(2, 3, requires_grad=True),
        torch.ones(2, 3, dtype=torch.bfloat16),
        torch.ones(2, 3, dtype=torch.float64),
    ):
        weight.push(gradient)
    client.end_step()
    np.testing.assert_allclose(weight.pull(), first - 2.0, rtol=1e-6)
    with pytest.raises(cairn.Invalid, match="'weight': a gradient: .* no array of numbers"):
        weight.push([[1.0], [2.0, 3.0]])


def test_a_place_that_a_dense_variable_cannot_be_pulled_into_is_refused(client):
    dense = client.dense("w", np.arange(3.0), optimizer=cairn.optimizers.SGD(0.5))
    fixed = np.zeros(3, np.float32)
    fixed.flags.writeable = False
    torch = pytest.importorskip("torch")
    strided = np.zeros(6, np.float32)[::2]
    for wrong in ([0, 0, 0], np.zeros(3), np.zeros(4, np.float32), fixed, strided, torch.zeros(3)):
        with pytest.raises(cairn.Invalid, match=r"'w': out must be a NumPy array of float32 and"):
            dense.pull(wrong)
    out = np.zeros(3, np.float32)
    assert dense.pull(out) is out
    assert out.tolist() == [0.0, 1.0, 2.0]


def test_the_state_comes_back_after_a_restart(directory):
    never = {"full_steps": None, "incremental_steps": None}
    servers = start(directory, **never)
    client = connect(directory)
    table = client.table("t", 2, optimizer=ADAGRAD)
    for step in range(3):
        table.apply_gradients([step], np.ones((1, 2)))
        client.end_step({"position": [step, "é"], "random": 2**70})
    client.save(full=True)
    client.end_step()  # its answer has the marker, …
    client.end_step({"position": "last", "random": 2**70})  # … which this one carries
    rows = table.rows()
    while client.status()[0].get("saved_step") != 5:
        pass
    for server in servers:
        server.stop()
    servers = start(directory, **never)
    client = connect(directory)
    assert client.step == 5
    assert client.state == {"position": "last", "random": 2**70}
    assert client.table("t", 2, optimizer=ADAGRAD).rows() == rows
    for server in servers:
        server.stop()


def test_a_lost_server_raises_rolled_back_and_training_goes_on(directory):
    servers = start(directory)
    client = connect(directory)
    table = client.table("t", 2, optimizer=ADAGRAD)
    lost = False
    while client.step < 20:
        if client.step == 12 and not lost:
            lost = True
            servers[1].stop()
            servers[1] = start_one(directory, 1)
        try:
            step = client.step
            rows = table.lookup(np.arange(step, step + 10))
            table.apply_gradients(np.arange(step, step + 10), rows + 1)
            client.end_step({"step": step})
        except cairn.ps.RolledBack as back:
            assert back.step == client.step <= 12
            assert client.state == (None if client.step == 0 else {"step": client.step - 1})
    assert client.rollbacks == 1
    assert isinstance(cairn.ps.RolledBack(3), cairn.Error)
    client.close()
    for server in servers:
        server.stop()


def test_a_client_that_was_closed_says_so(directory):
    servers = start(directory)
    client = connect(directory)
    table = client.table("t", 2, optimizer=ADAGRAD)
    dense = client.dense("w", np.zeros(3), optimizer=cairn.optimizers.SGD(1.0))
    client.end_step({"a": 1})
    client.close()
    for use in (
        lambda: table.lookup([1]),
        lambda: table.apply_gradients([1], [[1.0, 1.0]]),
        lambda: table.size(),
        lambda: dense.pull(),
        lambda: dense.push(np.ones(3)),
        lambda: client.end_step(),
        lambda: client.barrier(),
        lambda: client.save(),
        lambda: client.status(),
        lambda: client.metrics(),
        lambda: client.table("u", 2, optimizer=ADAGRAD),
    ):
        with pytest.raises(cairn.Error, match="closed"):
            use()
    client.close()
    assert client.step == 1 and client.state == {"a": 1}
    for server in servers:
        server.stop()


def in_a_fork(work):
    """What `work` gives, or what it raises, in a fork of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = str(work())
        except BaseException as error:  # told to the parent, whatever it is
            told = f"{type(error).__name__}: {error}"
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        text = told.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


@pytest.mark.parametrize("transport", ["socket", "grpc"])
def test_a_fork_does_not_speak_over_its_parents_connections(directory, monkeypatch, transport):
    monkeypatch.setenv("CAIRN_PS_TRANSPORT", transport)
    started = start(directory)
    client = connect(directory)
    counts = client.table(
        "counts", 1, optimizer=cairn.optimizers.SGD(1.0), initializer=cairn.initializers.Constant(0)
    )
    ids = np.arange(20)
    told = in_a_fork(lambda: counts.apply_gradients(ids, np.ones((20, 1))))
    assert f"belongs to process {os.getpid()}" in told and "of its own" in told
    assert f"belongs to process {os.getpid()}" in in_a_fork(lambda: counts.lookup(ids))
    # The servers would have taken the parent's for a repetition of the fork's.
    counts.apply_gradients(ids, np.ones((20, 1)))
    client.end_step()
    assert counts.lookup(ids).tolist() == [[-1.0]] * 20
    assert client.rollbacks == 0
    client.close()
    for server in started:
        server.stop()


def test_a_fork_that_lets_a_client_go_leaves_the_parents_alone(directory, servers):
    kept = {"client": connect(directory)}
    kept["client"].end_step()
    assert in_a_fork(kept.clear) == "None"  # waits for no thread of the parent's
    kept["client"].end_step()
    assert (kept["client"].step, kept["client"].rollbacks) == (2, 0)


@pytest.mark.parametrize("transport", ["socket", "grpc", "pigeon"])
def test_the_environment_names_the_transport(directory, monkeypatch, transport):
    monkeypatch.setenv("CAIRN_PS_TRANSPORT", transport)
    servers = start(directory)
    if transport == "pigeon":
        with pytest.raises(cairn.errors.Invalid, match="pigeon"):
            connect(directory)
    else:
        with connect(directory) as client:
            table = client.table("t", 2, optimizer=ADAGRAD)
            assert table.lookup(np.arange(50_000)).shape == (50_000, 2)
    for server in servers:
        server.stop()


def test_threads_that_share_a_client_take_turns(client):
    table = client.table("t", 2, optimizer=cairn.optimizers.SGD(1.0))
    ids = np.arange(400)
    table.assign(ids, np.stack([ids, -ids], axis=1))
    begun = threading.Barrier(3)
    wrong = []

    def look(number):
        begun.wait()
        for size in range(1, 200):
            mine = ids[number::3][:size]
            if (table.lookup(mine) != np.stack([mine, -mine], axis=1)).any() or client.step > 50:
                wrong.append(mine)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    begun.wait()
    for _ in range(50):
        table.apply_gradients(ids, np.zeros((400, 2)))
        client.end_step()
    for thread in threads:
        thread.join()
    assert not wrong
    assert client.step == 50
    assert {row[2] for row in table.rows().values()} == {50}, "each push once"


def test_a_signal_handler_does_not_call_into_a_call(directory):
    servers = start(directory, num_trainers=2)
    client, other = (connect(directory, num_trainers=2, trainer_id=i) for i in range(2))
    refused = threading.Event()
    told = []

    def handler(*_):
        step = client.step  # may be looked at
        try:
            client.save()
        except cairn.Error as error:
            told.append((step, str(error)))
            refused.set()

    def interrupt():
        while not refused.is_set():  # the first may come before the barrier is waited at
            os.kill(os.getpid(), signal.SIGUSR1)
            refused.wait(0.01)
        other.barrier()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        thread = threading.Thread(target=interrupt)
        thread.start()
        client.barrier()
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    step, error = told[0]
    assert step == 0
    assert "when that call is over" in error
    client.save()
    for server in servers:
        server.stop()


def test_two_trainers_add_their_gradients(directory):
    servers = start(directory, num_trainers=2)
    results = []

    def train(trainer):
        client = connect(directory, trainer_id=trainer, num_trainers=2)
        dense = client.dense("w", np.zeros(3), optimizer=cairn.optimizers.SGD(1.0))
        for _ in range(4):
            dense.push(np.full(3, trainer + 1))
            client.end_step()
        results.append(dense.pull().tolist())
        client.barrier()
        client.close()

    threads = [threading.Thread(target=train, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[-12.0] * 3] * 2
    for server in servers:
        server.stop()


def test_what_does_not_fit_is_refused(directory, client):
    client.table("t", 4, optimizer=ADAGRAD)
    with pytest.raises(cairn.Mismatch, match="another one: dim 4 there, 5 here$"):
        client.table("t", 5, optimizer=ADAGRAD)
    with pytest.raises(cairn.Invalid):
        client.table("t", 4, optimizer="adagrad")
    with pytest.raises(cairn.Invalid):
        client.table("u", 4, optimizer=ADAGRAD, dtype="int8")
    with pytest.raises(cairn.Invalid, match="the servers have a table of this name"):
        client.dense("t", np.ones(8, np.float32), optimizer=ADAGRAD)
    client.dense("bias", np.ones(8, np.float32), optimizer=ADAGRAD)
    with pytest.raises(cairn.Invalid, match="the servers have a dense variable of this name"):
        client.table("bias", 4, optimizer=ADAGRAD)
    table = client.table("t", 4, optimizer=ADAGRAD)
    with pytest.raises(cairn.Invalid):
        table.apply_gradients([1, 2], np.ones((1, 4)))
    with pytest.raises(cairn.Invalid):
        table.lookup([1.5])
    with pytest.raises(cairn.Invalid):
        cairn.ps.Server(directory, mode="both")
    with pytest.raises(cairn.Invalid, match="recovery"):
        cairn.ps.Server(directory, recovery="hope")
    with pytest.raises(cairn.Invalid, match="CA"):
        cairn.ps.Server(directory, num_servers=2, certificate="c.pem", key="k.pem")
    with pytest.raises(cairn.Invalid, match="address"):
        cairn.ps.Server(directory, num_servers=2, listen="0.0.0.0:0")
    with pytest.raises(cairn.Error, match="eviction"):
        table.evict(3)
    with pytest.raises(cairn.Invalid, match="step"):
        table.evict(-1)
    with pytest.raises(cairn.Invalid, match="eviction"):
        client.table("x", 4, optimizer=cairn.optimizers.SGD(0.1), eviction=10)
    with pytest.raises(cairn.Invalid):
        cairn.ps.Client()
    for name, wrong in [
        ("index", True), ("index", 1.0), ("token", 3), ("full_secs", float("nan")), ("full_secs", 0),
        ("incremental_secs", -1), ("incremental_steps", 0), ("max_to_keep", -1), ("listen", None),
    ]:  # fmt: skip
        with pytest.raises(cairn.Invalid, match=name):
            cairn.ps.Server(directory, **{name: wrong})
    for wrong in (float("nan"), -1, 0, True, "5"):
        with pytest.raises(cairn.Invalid, match="reconnect_timeout"):
            cairn.ps.Client(directory=directory, num_servers=1, reconnect_timeout=wrong)
    with pytest.raises(cairn.Invalid, match="dim"):
        client.table("y", True, optimizer=ADAGRAD)
    with pytest.raises(cairn.Invalid, match="surrogate"):
        client.table("\ud800", 4, optimizer=ADAGRAD)
    bias = client.dense("bias", np.ones(8, np.float32), optimizer=ADAGRAD)
    for wrong in (np.ones(8, complex), None, "x"):
        with pytest.raises(cairn.Invalid, match="numbers are wanted"):
            client.dense("z", wrong, optimizer=ADAGRAD)
        with pytest.raises(cairn.Invalid, match="numbers are wanted"):
            bias.push(wrong)
    assert table.lookup([1]).shape == (1, 4)


def test_what_a_client_is_given_is_refused_by_its_name(directory, client, servers, monkeypatch):
    for name, wrong in [
        ("trainer_id", "0"), ("trainer_id", 0.5), ("trainer_id", 1 << 40), ("num_trainers", "2"),
        ("num_trainers", True), ("num_servers", "2"), ("token", 5), ("ca", 5), ("server_name", 5),
        ("servers", 5), ("servers", [5]), ("servers", ["nowhere"]),
    ]:  # fmt: skip
        given = {"servers": ["127.0.0.1:1"], "reconnect_timeout": 0.1, name: wrong}
        with pytest.raises(cairn.Invalid, match=name):
            cairn.ps.Client(**given)
    for variable in ("CAIRN_TRAINER_ID", "CAIRN_NUM_TRAINERS"):
        with monkeypatch.context() as environment:
            environment.setenv(variable, "first")
            with pytest.raises(cairn.Invalid, match=f"{variable} must be a number, not 'first'"):
                cairn.ps.Client(["127.0.0.1:1"], reconnect_timeout=0.1)
    for wrong in (5, [5], ["nowhere"]):
        with pytest.raises(cairn.Invalid, match="pservers: .*cairn.ps.Client"):
            cairn.train.MonitoredTrainingSession(pservers=wrong)
    with pytest.raises(cairn.Invalid, match="table 't': seed must be an integer, not 'a'"):
        client.table("t", 4, optimizer=ADAGRAD, seed="a")
    with pytest.raises(cairn.Invalid, match="save: full must be True or False, not 'x'"):
        client.save("x")
    addresses = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    assert cairn.ps.Client(addresses, trainer_id=-1).names() == []


def test_a_state_that_would_not_come_back_is_refused_by_its_place(client):
    client.table("t", 4, optimizer=ADAGRAD)
    for wrong, where in [
        ({1: 2}, "state: the key 1"),
        ({"a": [{"b": np.zeros(2)}]}, "state/a/0/b: a ndarray"),
        ({"a": b"x"}, "state/a: a bytes"),
        ({1}, "state: a set"),
    ]:
        with pytest.raises(cairn.Invalid, match=where):
            client.end_step(wrong)
    assert client.step == 0
    client.end_step({"a": np.int64(7), "b": (1, 2.5), "c": None})
    assert client.state == {"a": 7, "b": [1, 2.5], "c": None}
    assert client.step == 1


def test_a_wait_for_servers_that_are_not_there_is_told(tmp_path, capfd):
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(cairn.Unavailable, match=r"waited 8 s for the servers"):
        cairn.ps.Client(directory=nowhere, num_servers=2, reconnect_timeout=8)
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 1, told
    assert re.search(r"waiting for the servers, at most [1-5] s more: server 0: ", told[0]), told
    assert f'no server 0 has registered in "{nowhere}"' in told[0]


def test_servers_tell_about_themselves(client, servers):
    client.table("t", 4, optimizer=ADAGRAD).lookup(np.arange(100))
    states = client.status()
    assert [state["state"] for state in states] == ["serving"] * 2
    assert sum(state["tables"][0]["rows"] for state in states) == 100
    assert "cairn_ps_up 1" in client.metrics(1)
    assert servers[0].status()["generation"] == 1


def trained_to_an_increment(directory, session, table):
    """Runs steps until the newest checkpoint is an increment of the last one."""

    def step(_):
        ids = np.arange(50)
        table.apply_gradients(ids, np.sin(table.lookup(ids) + ids[:, None]))

    while True:
        session.run(step)
        while any(status["saving"] for status in session.client.status()):
            pass
        with cairn.CheckpointManager(directory, read_only=True) as m:
            latest = m.latest()
        if latest is not None and (latest.kind, latest.step) == ("increment", session.global_step):
            return


def test_increments_of_8_bits_come_back_close_enough(directory):
    saver = cairn.train.Saver(incremental_save_restore=True, quantize=True)
    scaffold = cairn.train.Scaffold(saver, incremental_save_restore=True)
    settings = {"full_steps": None, "incremental_steps": 1, "quantize": True}
    servers = start(directory, **settings)
    client = connect(directory)
    table = client.table("t", 16, optimizer=ADAGRAD)
    assert client.quantizes
    with cairn.train.MonitoredTrainingSession(
        pservers=client, scaffold=scaffold, save_incremental_checkpoint_secs=60
    ) as session:
        trained_to_an_increment(directory, session, table)
        absolute, relative = session.quantization_error()
    assert 0 < absolute and 0 < relative < 0.01
    assert (absolute, relative) == client.quantization_error()
    assert "cairn_ps_quantization_error_ratio 0" in client.metrics(1)
    learned = dict(table.items())
    for server in servers:
        server.stop()
    servers = start(directory, **settings)
    restored = dict(connect(directory).table("t", 16, optimizer=ADAGRAD).items())
    for server in servers:
        server.stop()
    assert sorted(restored) == sorted(learned)
    off = [np.abs(restored[key] - learned[key]).max() for key in learned]
    assert 0 < max(off) <= absolute * 1.0001


def test_a_session_that_counts_on_8_bits_refuses_servers_that_store_all(client):
    saver = cairn.train.Saver(incremental_save_restore=True, quantize=True)
    scaffold = cairn.train.Scaffold(saver, incremental_save_restore=True)
    assert not client.quantizes and client.quantization_error() == (0.0, 0.0)
    session = cairn.train.MonitoredTrainingSession(
        pservers=client, scaffold=scaffold, save_incremental_checkpoint_secs=60
    )
    with pytest.raises(cairn.Invalid, match="start them with --quantize"), session:
        pass


def test_a_torch_embedding_trains_on_the_servers(client):
    torch = pytest.importorskip("torch")
    import cairn.torch

    table = client.table("words", 3, optimizer=cairn.optimizers.SGD(1.0))
    words = cairn.torch.Embedding(table)
    ids = torch.tensor([[1, 2], [2, 7]])
    before = words(ids).detach().numpy().copy()
    words(ids).sum().backward()
    client.end_step()
    after = table.lookup(ids.numpy())
    assert np.allclose(before - after, [[[1] * 3, [2] * 3], [[2] * 3, [1] * 3]])


def trained(directory, lose_at=None, epochs=2, recovery="exact"):
    """A Trainer on two servers; one of them is lost within a step of choice. What was learned, and
    the batches of the steps begun."""
    servers = start(directory, recovery=recovery)
    client = connect(directory)
    table = client.table("t", 2, optimizer=ADAGRAD)
    dense = client.dense("w", np.zeros(3), optimizer=cairn.optimizers.SGD(0.1))
    begun = []

    def step(model, batch):
        if len(begun) == lose_at:
            servers[1].stop()
            servers[1] = start_one(directory, 1, recovery=recovery)
        begun.append(tuple(batch[:2].tolist()))
        noise = np.random.standard_normal(2)  # the global generator has to go back too
        rows = table.lookup(batch)
        table.apply_gradients(batch, rows + noise)
        dense.push(dense.pull() - noise.sum() * model["scale"])
        return {"first": float(rows[0, 0])}

    def reader(epoch):
        return [np.arange(i, i + 8) * (epoch + 1) for i in range(10)]

    np.random.seed(5)
    trainer = cairn.Trainer({"scale": 0.5}, step, pservers=client)
    summary = trainer.train(epochs, reader)
    result = table.rows(), dense.pull().tobytes(), summary.global_step, client.rollbacks
    for server in servers:
        server.stop()
    return (*result, begun)


def test_a_trainer_goes_back_with_its_servers(tmp_path):
    plain = trained(str(tmp_path / "plain"))
    assert plain[2:4] == (20, 0)
    lost = trained(str(tmp_path / "lost"), lose_at=14)
    assert lost[3] == 1
    assert lost[:3] == plain[:3]
    # The step that broke is begun again at least: how far the job goes back is up to its saves.
    assert set(lost[4]) == set(plain[4]) and len(lost[4]) > 20


def test_with_a_log_a_trainer_repeats_nothing(tmp_path):
    plain = trained(str(tmp_path / "plain"))
    lost = trained(str(tmp_path / "lost"), lose_at=14, recovery="log")
    assert lost[3] == 0
    assert lost == plain


def test_a_loss_after_the_last_step_is_repeated_too(directory):
    """The client that the Trainer made itself is closed in the end: the job may go back just then."""
    servers = start(directory, full_steps=None, incremental_steps=None)
    seen = []

    def step(model, batch):
        table = trainer.client.table("t", 2, optimizer=ADAGRAD)
        table.apply_gradients(batch, np.ones((len(batch), 2)))

    def lose(event):
        if isinstance(event, cairn.EndEpochEvent):
            seen.append(event.epoch)
            if len(seen) == 1:
                servers[1].stop()
                servers[1] = start_one(directory, 1, full_steps=None, incremental_steps=None)

    config = cairn.CheckpointConfig(directory)
    addresses = [f"127.0.0.1:{server.port}" for server in servers]
    trainer = cairn.Trainer({}, step, checkpoint_config=config, pservers=addresses)
    summary = trainer.train(1, [np.arange(4)] * 3, lose)
    assert summary.global_step == 3
    assert seen == [0, 0]
    looks = connect(directory, trainer_id=-1)
    assert [row[2] for row in looks.table("t", 2, optimizer=ADAGRAD).rows().values()] == [3] * 4
    for server in servers:
        server.stop()


def test_partial_recovery_counts_what_is_lost(directory):
    servers = start(directory, recovery="partial", full_steps=None, incremental_steps=None)
    client = connect(directory)
    table = client.table("t", 1, optimizer=cairn.optimizers.SGD(1.0))
    for step in range(10):
        if step == 5:
            servers[1].stop()
            servers[1] = start_one(directory, 1, recovery="partial")
        table.apply_gradients(np.arange(100), np.ones((100, 1)))
        client.end_step()
    assert client.rollbacks == 0
    assert [state["lost_changes"] for state in client.status()] == [0, 5]
    for server in servers:
        server.stop()


def test_a_trainer_is_told_what_goes_on_the_servers(directory, client):
    with pytest.raises(cairn.Invalid, match="host:port"):
        cairn.Trainer({}, lambda m, b: None, pservers="127.0.0.1:1")
    table = cairn.EmbeddingTable("local", 2, optimizer=ADAGRAD)
    with pytest.raises(cairn.Invalid, match="trainer.client.table"):
        cairn.Trainer({}, lambda m, b: None, pservers=client, tables=[table])


def session_trained(directory, lose_at=None, recovery="exact"):
    """A session on two servers, with a state of its own. What was learned, and the steps begun."""
    servers = start(directory, recovery=recovery)
    client = connect(directory)
    table = client.table("t", 2, optimizer=ADAGRAD)
    state = {"sum": np.zeros(2), "steps": 0}
    begun = []

    def step(global_step):
        if len(begun) == lose_at:
            servers[1].stop()
            servers[1] = start_one(directory, 1, recovery=recovery)
        begun.append(global_step)
        rows = table.lookup(np.arange(global_step, global_step + 8))
        table.apply_gradients(np.arange(global_step, global_step + 8), rows + state["sum"])
        state["sum"] += rows[0]
        session.state["steps"] += 1

    hooks = [cairn.train.StopAtStepHook(20)]
    with cairn.train.MonitoredTrainingSession(pservers=client, state=state, hooks=hooks) as session:
        while not session.should_stop():
            session.run(step)
        assert session.increments
    result = table.rows(), state["sum"].tobytes(), session.state["steps"], session.global_step
    client.close()
    for server in servers:
        server.stop()
    return result, begun


@pytest.mark.parametrize("left", [{"position": 3}, {"a": 1, "b": 2}, 3, [1], "text", {}])
def test_a_trainer_does_not_take_another_programs_state_for_its_own(directory, client, left):
    client.end_step(left)
    trainer = cairn.Trainer({"w": np.zeros(2)}, lambda model, batch: None, pservers=client)
    with pytest.raises(cairn.Mismatch, match="of trainer 0, of step 1, .* another program than a"):
        trainer.train(1, [1, 2])
    with cairn.train.MonitoredTrainingSession(pservers=client, state={"w": np.ones(2)}) as session:
        session.run(lambda step: None)  # counts by its step alone
    assert client.step == 2 and client.state["session"]


def test_a_session_goes_back_with_its_servers(tmp_path):
    plain, begun = session_trained(str(tmp_path / "plain"))
    assert plain[2:] == (20, 20) and begun == list(range(20))
    lost, again = session_trained(str(tmp_path / "lost"), lose_at=14)
    assert lost == plain
    assert len(again) > 20 and sorted(set(again)) == begun
    logged, once = session_trained(str(tmp_path / "logged"), lose_at=14, recovery="log")
    assert (logged, once) == (plain, begun)


def test_a_session_that_goes_back_forgets_what_came_since(directory):
    servers = start(directory, 1, incremental_steps=4)
    client = connect(directory, 1)
    client.table("t", 1, optimizer=ADAGRAD)
    ended = []

    def step(global_step):
        seen = session.state["seen"]
        seen[str(global_step)] = seen.get(str(global_step), 0) + 1
        session.state["list"].append(global_step)
        if global_step == 10 and not ended:
            while not servers[0].status()["saves"]:
                pass
            ended.append(servers[0].stop())
            servers[0] = start_one(directory, 0, 1, incremental_steps=4)

    state = {"seen": {}, "list": [], "first": {"a": 1}}
    with cairn.train.MonitoredTrainingSession(pservers=client, state=state) as session:
        while session.global_step < 12:
            session.run(step)
    assert client.rollbacks == 1
    assert session.state["seen"] == {str(i): 1 for i in range(12)}
    assert session.state["list"] == list(range(12))
    assert session.state["first"] == {"a": 1}
    # A later program has more in its state than was stored.
    more = {"seen": {}, "list": [], "first": {}, "new": {"b": 2}}
    with cairn.train.MonitoredTrainingSession(pservers=client, state=more) as session:
        assert session.state["new"] == {"b": 2} and session.state["first"] == {"a": 1}
    client.close()
    servers[0].stop()


def test_tensors_of_a_session_are_filled_in_place(directory, client):
    torch = pytest.importorskip("torch")
    state = {
        "weight": torch.nn.Parameter(torch.zeros(2)),
        "half": torch.zeros((2, 3), dtype=torch.bfloat16),
    }

    def step(global_step):
        with torch.no_grad():
            for tensor in state.values():
                tensor += global_step + 1

    with cairn.train.MonitoredTrainingSession(pservers=client, state=dict(state)) as session:
        session.run(step)
        session.run(step)
    again = {name: tensor.detach().clone().zero_() for name, tensor in state.items()}
    again["weight"] = torch.nn.Parameter(again["weight"])
    with cairn.train.MonitoredTrainingSession(pservers=client, state=dict(again)) as session:
        assert session.global_step == 2
    for name, tensor in state.items():
        assert torch.equal(again[name], tensor) and again[name].dtype == tensor.dtype
        assert float(tensor.detach().flatten()[0]) == 3.0
    for wrong in (torch.zeros(2, dtype=torch.complex64), np.zeros(2, complex), torch.nn.Linear(2, 2)):
        with pytest.raises(cairn.Invalid, match="state/wrong"):
            with cairn.train.MonitoredTrainingSession(pservers=client, state={"wrong": wrong}):
                pass


def estimated(directory, client, stop_at, count=30, **options):
    """The batches that one process trains before it is lost."""
    trained = []
    table = client.table("t", 1, optimizer=cairn.optimizers.SGD(1.0))

    def model_fn(features, mode):
        def train_op(step):
            if step == stop_at:
                raise KeyboardInterrupt
            trained.append(features)
            table.apply_gradients([features], np.ones((1, 1)))

        return cairn.train.EstimatorSpec(mode, train_op=train_op)

    try:
        cairn.train.Estimator(model_fn, directory, pservers=client).train(
            lambda: range(count), **options
        )
    except KeyboardInterrupt:
        pass
    return trained


@pytest.mark.parametrize("ends", [{}, {"steps": 30}, {"max_steps": 30}], ids=["data", "steps", "max"])
def test_an_estimator_on_servers_goes_on_in_its_data(directory, ends):
    servers = start(directory, mode="async", recovery="log")
    trained = []
    for stop_at in (7, 18, None):
        client = connect(directory)  # another process
        trained += estimated(directory, client, stop_at, **ends)
    assert trained == list(range(30))
    client.close()
    # That call is done: the next one begins with its own first batch.
    client = connect(directory)
    assert estimated(directory, client, None, count=3) == [0, 1, 2]
    assert client.step == 33
    client.close()
    for server in servers:
        server.stop()


def test_an_estimator_reads_its_data_again_when_the_job_goes_back(directory):
    servers = start(directory)
    client = connect(directory)
    table = client.table("t", 1, optimizer=cairn.optimizers.SGD(1.0))
    trained = []

    def model_fn(features, mode):
        def train_op():
            if len(trained) == 14:
                servers[0].stop()
                servers[0] = start_one(directory, 0)
            trained.append(int(features[0]))
            table.apply_gradients(features, np.ones((1, 1)))

        return cairn.train.EstimatorSpec(mode, loss=0.0, train_op=train_op)

    estimator = cairn.train.Estimator(model_fn, directory, pservers=client)
    estimator.train(lambda: ((np.array([i]), None) for i in range(100)), steps=20)
    assert estimator.global_step == 20
    assert len(trained) > 20
    assert {key: row[2] for key, row in table.rows().items()} == {i: 1 for i in range(20)}
    client.close()
    for server in servers:
        server.stop()


def test_the_next_job_begins_with_what_trainer_0_saved(tmp_path):
    first = start(str(tmp_path / "first"))
    client = connect(str(tmp_path / "first"))
    table = client.table("t", 4, optimizer=ADAGRAD)
    dense = client.dense("w", np.zeros((300, 7)), optimizer=cairn.optimizers.Momentum(0.1, 0.9))
    for step in range(4):
        table.apply_gradients(np.arange(step, step + 50), np.ones((50, 4)))
        dense.push(np.ones((300, 7)))
        client.end_step()
    saved = cairn.io.save_persistables(tmp_path / "saved", client)
    assert saved.names == ["t", "w"] and saved.info.step == 4
    with pytest.raises(cairn.Invalid, match="everything"):
        cairn.io.save_persistables(tmp_path / "saved", client, filename="all")
    rows, values = table.rows(), dense.pull()
    for server in first:
        server.stop()
    second = start(str(tmp_path / "second"), 3, load=saved.info.path)
    client = connect(str(tmp_path / "second"), 3)
    assert client.step == 0
    table = client.table("t", 4, optimizer=ADAGRAD)
    dense = client.dense("w", np.ones((300, 7)), optimizer=cairn.optimizers.Momentum(0.1, 0.9))
    assert table.rows() == rows
    assert dense.pull().tobytes() == values.tobytes()
    for server in second:
        server.stop()


def test_persistables_are_saved_in_a_relative_directory_too(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bias = client.dense("bias", np.zeros(3), optimizer=cairn.optimizers.SGD(1.0))
    bias.push(np.ones(3))
    client.end_step()
    for _ in range(2):
        saved = cairn.io.save_persistables("result", client)
        assert saved.names == ["bias"]
        assert saved.bytes == saved.info.bytes > 0
    assert os.path.samefile(saved.info.path, tmp_path / "result" / os.path.basename(saved.info.path))


def test_a_learning_rate_is_set_on_the_servers(client):
    users = client.table("users", 1, optimizer=cairn.optimizers.SGD(0.5), initializer=ZEROS)
    assert users.learning_rate == 0.5
    expected = 0.0
    for step, rate in enumerate([0.5, 0.25, 0.25, 0.0, 1.0]):
        users.apply_gradients([1], [[1.0]])
        if rate != users.learning_rate:
            users.learning_rate = rate
            assert users.learning_rate == rate, "also before the step has ended"
        client.end_step()
        expected -= rate
        assert users.learning_rate == rate
        assert users.lookup([1]).tolist() == [[expected]], step
    for wrong in (-1, float("nan"), float("inf"), 1e300, "0.1", None, True):
        with pytest.raises(cairn.Invalid, match="users.*learning_rate"):
            users.learning_rate = wrong
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(cairn.Invalid, match=r"too large: 1e\+300"):
            users.learning_rate = 1e300
    assert users.learning_rate == 1.0


def test_a_learning_rate_comes_back_with_the_checkpoint(tmp_path):
    def begin(server):
        client = cairn.ps.Client(f"127.0.0.1:{server.port}")
        sgd = cairn.optimizers.SGD(0.5)
        return client, client.table("users", 1, optimizer=sgd, initializer=ZEROS)

    with cairn.ps.Server(tmp_path / "run", full_secs=None, full_steps=1) as server:
        client, users = begin(server)
        users.learning_rate = 0.125
        client.end_step()
        client.end_step()
        deadline = time.monotonic() + 60
        while client.status()[0]["saving"] or client.status()[0]["saves"] == 0:
            assert time.monotonic() < deadline, client.status()
            time.sleep(0.01)
    with cairn.ps.Server(tmp_path / "run") as server:
        client, users = begin(server)
        assert client.step > 0
        assert users.learning_rate == 0.125


def test_a_client_is_told_why_its_server_has_given_up(tmp_path):
    with cairn.ps.Server(tmp_path / "run", load=tmp_path / "nothing") as server:
        with pytest.raises(cairn.Error):
            server.wait()
        with pytest.raises(cairn.Unavailable, match="given up.*nothing"):
            cairn.ps.Client(f"127.0.0.1:{server.port}", reconnect_timeout=0.5)


def test_a_dense_variable_needs_a_name(client):
    with pytest.raises(cairn.Invalid, match="needs a name"):
        client.dense("", np.zeros(1), optimizer=ADAGRAD)
