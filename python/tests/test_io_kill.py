"""SIGKILL while variables are saved: the directory holds one save, whole, never an older one than was
acknowledged."""

import random
import time

import numpy as np
from children import Child

import cairn
from cairn import io

WRITER = """
from cairn import io
scope = cairn.Scope()
for i in range(20):
    scope.parameter(f"layer/{i}/w", np.zeros(5000 + i), None)
scope.persistable("step", np.int64(0))
if os.path.isdir(sys.argv[1]):
    io.load_persistables(sys.argv[1], scope)
print("from", int(scope["step"]))
while True:
    step = int(scope["step"]) + 1
    for v in scope.vars():
        scope[v.name][...] = step
    io.save_persistables(sys.argv[1], scope, filename=None if step % 2 else "all")
    print(step)
"""


def stored(path):
    scope = cairn.Scope()
    for i in range(20):
        scope.parameter(f"layer/{i}/w", np.zeros(5000 + i))
    scope.persistable("step", np.int64(0))
    io.load_persistables(path, scope)
    values = {float(scope[v.name].min()) for v in scope.vars()}
    values |= {float(scope[v.name].max()) for v in scope.vars()}
    assert len(values) == 1, "the variables are of one save"
    return int(values.pop())


def test_kills_leave_a_whole_save(tmp_path):
    path = str(tmp_path / "model")
    r = random.Random(11)
    last = 0
    for _ in range(8):
        child = Child(WRITER, path)
        first = child.line()
        assert first.startswith("from "), child.end()
        assert int(first.split()[1]) >= last
        heard = [child.line() for _ in range(1 + r.randrange(3))]
        time.sleep(r.random() * 0.05)  # the moment of the kill, not a synchronisation
        heard = [int(line) for line in heard + child.kill().split("\n") if line]
        found = stored(path)
        assert found >= max(heard, default=last)
        last = found
    assert cairn.verify(path).ok
