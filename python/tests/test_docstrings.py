"""Every public name says what it is and shows it at work. The examples are doctests, which pytest runs with
the tests (pyproject.toml); here is checked that they are there.

A function or class has an example of its own. A method or property has one too, or is used in the example
of its class. One that overrides another of the package has that one's documentation; so has, without a
docstring, one of a class that derives from another library's, which calls it. What a public class has of
one that is not exported is its own.
"""

import ast
import functools
import pathlib
import re

import cairn

ROOT = pathlib.Path(cairn.__file__).parent
# Parts of the tuner that nobody imports: its processes, what they report, and what it decides by.
INTERNAL = {
    "cairn.tune.master_reporter",
    "cairn.tune.remote_worker",
    "cairn.tune.result_keys",
    "cairn.tune.search_policy",
    "cairn.tune.worker",
    "cairn.tune.zygote",
}
# Classes of Python's own from which nothing is inherited that a user calls.
PLAIN = {"BaseException", "Enum", "Exception", "Generic", "NamedTuple", "PermissionError", "Protocol",
         "RuntimeError", "TimeoutError", "ValueError", "object", "str"}  # fmt: skip


@functools.lru_cache(maxsize=None)
def read_modules():
    """Dotted name → what the file says. Files are read and not imported: some want libraries that are
    not there."""
    modules = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return modules


class Package:
    def __init__(self):
        self.modules = read_modules()

    def public_modules(self):
        return [m for m in self.modules if "._" not in m and m not in INTERNAL]

    def exported(self, module):
        """What __all__ names; None without one."""
        for node in self.modules[module].body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return ast.literal_eval(node.value)
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "__all__":
                return self.exported(self.source_of(module, node))
        return None

    def source_of(self, module, node):
        """The module that a `from … import` takes from."""
        if node.level == 0:
            return node.module
        package = module if (ROOT.parent / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        return f"{package}.{node.module}" if node.module else package

    def find(self, module, name):
        """(module, node) of the class or function; None for modules, values and what is not ours."""
        if module not in self.modules:
            return None
        for node in self.modules[module].body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
                return module, node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    source = self.source_of(module, node)
                    if (alias.asname or alias.name) == name and f"{source}.{alias.name}" not in self.modules:
                        return self.find(source, alias.name)
        return None

    def bases(self, module, node):
        """The classes of the package that one derives from, at any distance."""
        for base in node.bases:
            found = self.find(module, ast.unparse(base).rpartition(".")[2])
            if found is not None:
                yield found
                yield from self.bases(*found)

    def derives_from_others(self, module, node):
        """Whether another library's class is among those it derives from."""
        classes = [(module, node), *self.bases(module, node)]
        names = [(m, ast.unparse(b).partition("[")[0].rpartition(".")[2]) for m, c in classes for b in c.bases]
        return any(self.find(m, name) is None and name not in PLAIN for m, name in names)

    def surface(self):
        """Dotted name of where it is defined → (module, node)."""
        found = {}
        for module in self.public_modules():
            for name in self.exported(module) or ():
                at = self.find(module, name)
                if at is not None:
                    found[f"{at[0]}.{at[1].name}"] = at
        return found


def example(node):
    """The lines of a docstring that are run."""
    lines = (ast.get_docstring(node) or "").splitlines()
    return "\n".join(line for line in lines if re.match(r"\s*(>>>|\.\.\.)", line))


def methods(node):
    """Public ones, the setters of properties aside, and the cairn_… that the manager calls of a state."""
    found = {}
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and not part.name.startswith(("_", "cairn_")):
            found.setdefault(part.name, part)
    return found


def faults(package):
    surface = package.surface()
    for name, (module, node) in sorted(surface.items()):
        if not ast.get_docstring(node):
            yield f"{name}: no docstring"
        elif not example(node):
            yield f"{name}: no example"
        if isinstance(node, ast.FunctionDef):
            continue
        bases = list(package.bases(module, node))
        hidden = [(m, base) for m, base in bases if f"{m}.{base.name}" not in surface]
        called_by_others = package.derives_from_others(module, node)
        for owner_module, owner in [(module, node), *hidden]:
            above = package.bases(owner_module, owner)
            documented = {method for _, base in above for method in methods(base)}
            for method, part in methods(owner).items():
                if method in documented:
                    continue
                if not ast.get_docstring(part):
                    if not called_by_others:
                        yield f"{name}.{method}: no docstring"
                elif not example(part) and not re.search(rf"(\.|def ){method}\b", example(node)):
                    yield f"{name}.{method}: no example, and its class's does not use it"


def test_every_public_name_has_an_example():
    found = list(faults(Package()))
    assert not found, f"{len(found)} names:\n" + "\n".join(found)


def test_every_public_module_says_what_it_exports():
    package = Package()
    silent = [m for m in package.public_modules() if package.exported(m) is None]
    assert silent == ["cairn.integrations"]  # a package of modules that are imported one by one


def test_names_of_private_modules_are_found_where_they_are_exported():
    surface = Package().surface()
    assert {"cairn.io.save_vars", "cairn.core._context.init", "cairn._estimator.Estimator"} <= surface.keys()
    assert "cairn.tune.session.report" in surface and not any(".worker." in name for name in surface)
