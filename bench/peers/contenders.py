"""Libraries that save arrays, each behind the same few calls. One process runs one of them."""

import importlib.metadata
import os
import shutil
from pathlib import Path

import numpy as np


def sync_tree(path):
    """fsync of every file and directory: for those that do not do it themselves."""
    path = Path(path)
    for root, _, files in os.walk(path if path.is_dir() else path.parent):
        for name in files:
            if path.is_file() and name != path.name:
                continue
            fd = os.open(os.path.join(root, name), os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        fd = os.open(root, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    fd = os.open(path.parent, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


class Contender:
    """save(path) is durable when it returns; load(path) fills (or makes) arrays with real bytes."""

    package = ""
    asynchronous = False

    def __init__(self, arrays):
        self.arrays = arrays  # {name: float32 array}

    def version(self):
        return importlib.metadata.version(self.package)

    def refresh(self):
        """Called before each save that is timed."""

    def save(self, path):
        raise NotImplementedError

    def load(self, path):
        """Gives {name: NumPy array} whose bytes were read."""
        raise NotImplementedError


class Cairn(Contender):
    asynchronous = True

    def __init__(self, arrays):
        super().__init__(arrays)
        import cairn

        self.cairn = cairn
        self.manager = None

    def version(self):
        return self.cairn.__version__

    def refresh(self):
        # What did not change is linked instead of written: that would be no comparison.
        for array in self.arrays.values():
            array += 1

    def _open(self, path):
        if self.manager is None or self.manager.directory != str(path):
            self.close()
            self.manager = self.cairn.CheckpointManager(str(path), keep_last=1)
        return self.manager

    def _step(self):
        latest = self.manager.latest()
        return 0 if latest is None else latest.step + 1

    def save(self, path):
        manager = self._open(path)
        manager.save(self._step(), self.arrays, blocking=True)

    def begin(self, path, lazy=False):
        manager = self._open(path)
        return manager.save(self._step(), self.arrays, lazy=lazy)

    def finish(self, handle):
        handle.wait()

    def load(self, path):
        with self.cairn.CheckpointManager(str(path), read_only=True) as manager:
            manager.restore(self.arrays)
        return self.arrays

    def close(self):
        if self.manager is not None:
            self.manager.close()
            self.manager = None


class TorchSave(Contender):
    package = "torch"

    def __init__(self, arrays):
        super().__init__(arrays)
        import torch

        self.torch = torch
        self.tensors = {name: torch.from_numpy(a) for name, a in arrays.items()}

    def save(self, path):
        self.torch.save(self.tensors, path)
        sync_tree(path)

    def load(self, path):
        loaded = self.torch.load(path, weights_only=True)
        return {name: t.numpy() for name, t in loaded.items()}


class SafetensorsTorch(TorchSave):
    package = "safetensors"

    def save(self, path):
        from safetensors.torch import save_file

        save_file(self.tensors, path)
        sync_tree(path)

    def load(self, path):
        """Into memory of one's own: mapped pages are no load."""
        from safetensors.torch import load_file

        loaded = load_file(path)
        for name, tensor in loaded.items():
            self.tensors[name].copy_(tensor)
        return self.arrays


class SafetensorsNumpy(Contender):
    package = "safetensors"

    def save(self, path):
        from safetensors.numpy import save_file

        save_file(self.arrays, path)
        sync_tree(path)

    def load(self, path):
        from safetensors.numpy import load_file

        return load_file(path)


class NumpySave(Contender):
    package = "numpy"

    def save(self, path):
        path = Path(path)
        path.mkdir(exist_ok=True)
        for name, array in self.arrays.items():
            np.save(path / f"{name}.npy", array)
        sync_tree(path)

    def load(self, path):
        return {name: np.load(Path(path) / f"{name}.npy") for name in self.arrays}


class Dcp(TorchSave):
    asynchronous = True

    def __init__(self, arrays):
        super().__init__(arrays)
        import torch.distributed.checkpoint as dcp

        self.dcp = dcp
        if not self.torch.distributed.is_initialized():
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", "29511")
            self.torch.distributed.init_process_group("gloo", rank=0, world_size=1)

    def save(self, path):
        self.dcp.save(self.tensors, checkpoint_id=str(path))
        sync_tree(path)

    def begin(self, path, lazy=False):
        return self.dcp.async_save(self.tensors, checkpoint_id=str(path)), path

    def finish(self, handle):
        handle[0].result()
        sync_tree(handle[1])

    def load(self, path):
        self.dcp.load(self.tensors, checkpoint_id=str(path))
        return self.arrays


class Orbax(Contender):
    package = "orbax-checkpoint"
    asynchronous = True

    def __init__(self, arrays):
        super().__init__(arrays)
        import orbax.checkpoint as ocp

        self.ocp = ocp
        self.checkpointer = ocp.PyTreeCheckpointer()
        self.background = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())

    def save(self, path):
        self.checkpointer.save(Path(path).absolute(), self.arrays, force=True)
        sync_tree(path)

    def begin(self, path, lazy=False):
        self.background.save(Path(path).absolute(), self.arrays, force=True)
        return path

    def finish(self, handle):
        self.background.wait_until_finished()
        sync_tree(handle)

    def load(self, path):
        loaded = self.checkpointer.restore(Path(path).absolute())
        return {name: np.asarray(a) for name, a in loaded.items()}


class Paddle(Contender):
    package = "paddlepaddle"

    def __init__(self, arrays):
        super().__init__(arrays)
        import paddle

        self.paddle = paddle
        paddle.set_device("cpu")
        self.tensors = {name: paddle.to_tensor(a) for name, a in arrays.items()}

    def save(self, path):
        self.paddle.save(self.tensors, str(path))
        sync_tree(path)

    def load(self, path):
        return {name: t.numpy() for name, t in self.paddle.load(str(path)).items()}


ALL = {
    "cairn": Cairn,
    "torch.save": TorchSave,
    "safetensors.torch": SafetensorsTorch,
    "safetensors.numpy": SafetensorsNumpy,
    "torch DCP": Dcp,
    "orbax": Orbax,
    "paddle.save": Paddle,
    "numpy.save": NumpySave,
}


def remove(path):
    path = Path(path)
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
