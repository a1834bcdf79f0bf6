"""Random nested states, both into what is given and into new memory."""

import collections
import copy
import random

import ml_dtypes
import numpy as np
import pytest
import torch
from sameness import assert_same

import cairn

STATES = 240
SEED = 88172645463325252


class Maker:
    """Random nested states from one seed."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.made = []

    def value(self, depth=0):
        if depth < 4 and self.r.random() < 0.45:
            return self.container(depth)
        if self.made and self.r.random() < 0.1:
            return self.r.choice(self.made)  # tied
        return self.r.choice([self.number, self.text, self.array, self.tensor, self.other])()

    def container(self, depth):
        count = self.r.choice([0, 1, 2, 3, 5])
        kind = self.r.randrange(5)
        if kind == 0:
            return [self.value(depth + 1) for _ in range(count)]
        if kind == 1:
            return tuple(self.value(depth + 1) for _ in range(count))
        keys = [self.key(kind) for _ in range(count)]
        items = [(key, self.value(depth + 1)) for key in keys]
        return collections.OrderedDict(items) if kind == 2 else dict(items)

    def key(self, kind):
        texts = [
            "a",
            "b",
            "a/b",
            "",
            "layer.0.weight",
            "ё",
            "0",
            "1",
            "value",
            "a~2",
            "__metadata__",
        ]
        if kind < 4:
            return self.r.choice(texts)
        return self.r.choice([*texts, 0, 1, -1, None, (1, "a"), b"k", 2.5, True, 2**80])

    def number(self):
        return self.r.choice(
            [self.r.getrandbits(self.r.choice([8, 60, 200])), -self.r.getrandbits(64),
             self.r.gauss(0, 1e10), float("nan"), float("-inf"), -0.0, True, complex(0.1, -2),
             np.float32(self.r.random()), np.int64(-5)]
        )  # fmt: skip

    def text(self):
        return "".join(chr(self.r.choice([65, 34, 92, 233, 0x4E2D, 0x1F600])) for _ in range(5))

    def shape(self):
        return tuple(self.r.choice([0, 1, 2, 3, 7]) for _ in range(self.r.randrange(4)))

    def array(self):
        dtype = self.r.choice(
            ["f4", "f8", "i8", "u1", "?", "c8", ">i4", "M8[s]", ml_dtypes.bfloat16]
        )
        made = np.array(self.r.choices(range(256), k=4096), np.uint8)[:1024] % 100
        count = int(np.prod(shape := self.shape(), dtype=np.int64))
        made = made[:count].astype(np.int64).astype(dtype).reshape(shape)
        self.made.append(made)
        return made.T if self.r.random() < 0.3 else made

    def tensor(self):
        dtype = self.r.choice(
            [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
        )
        made = torch.tensor(self.r.choices(range(100), k=343))
        count = int(np.prod(shape := self.shape(), dtype=np.int64))
        made = made[:count].to(dtype).reshape(shape)
        self.made.append(made)
        return made

    def other(self):
        return self.r.choice(
            [None, b"", bytes(self.r.choices(range(256), k=1500)), bytearray(b"ab"), {1, "x"},
             random.Random(self.r.random()), np.random.default_rng(self.r.getrandbits(32))]
        )  # fmt: skip


def blank(state):
    """The same state with other contents: arrays are zero, values are None."""
    if isinstance(state, dict):
        return type(state)((key, blank(item)) for key, item in state.items())
    if isinstance(state, (list, tuple)):
        return type(state)(blank(item) for item in state)
    if isinstance(state, np.ndarray):
        return np.zeros(state.shape, state.dtype)
    if isinstance(state, torch.Tensor):
        return torch.zeros_like(state)
    return None


@pytest.mark.parametrize("batch", range(10))
def test_random_states_come_back(directory, batch):
    with cairn.CheckpointManager(directory, keep_last=1) as m:
        for number in range(STATES // 10):
            state = Maker(SEED + batch * 1000 + number).value()
            before = copy.deepcopy(state)
            m.save(number, state, blocking=True)
            assert_same(before, m.restore().state, f"seed {SEED + batch * 1000 + number}")
            restored = m.restore(blank(state))
            assert_same(before, restored.state, f"seed {SEED + batch * 1000 + number}, given")
