"""The type stubs name what the native module has, and nothing else."""

import ast
import pathlib

import pytest

import cairn


@pytest.mark.parametrize("name", ["_native", "_predict", "_ps"])
def test_the_stubs_name_what_the_native_module_has(name):
    native = pytest.importorskip(f"cairn.{name}")
    text = (pathlib.Path(cairn.__file__).parent / f"{name}.pyi").read_text(encoding="utf-8")
    stubs = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            stubs[node.name] = None
        elif isinstance(node, ast.ClassDef):
            names = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
            stubs[node.name] = names - {"__init__"}
    found = {}
    for name, value in vars(native).items():
        if not name.startswith("_"):
            is_class = isinstance(value, type)
            found[name] = {n for n in vars(value) if not n.startswith("_")} if is_class else None
    assert stubs == found


def test_every_name_that_is_exported_exists():
    assert all(hasattr(cairn, name) for name in cairn.__all__)
