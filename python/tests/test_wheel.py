"""What `pip install .` gives: the wheel, built by pip as a user builds it, in a virtual environment that has nothing else.

Part of `make test-integrations`: the first build takes a quarter of an hour on two cores (ccache and build/wheel keep it).
"""

import os
import pathlib
import re
import signal
import subprocess
import sysconfig
import urllib.request
import zipfile

import pytest
from example_runs import ROOT, quickstart_killed_and_started_again

pytestmark = pytest.mark.timeout(3600)
PAGE = ROOT / "web" / "dist"


def outside():
    """The environment of somebody who has no checkout and no other virtual environment."""
    ours = ("PYTHON", "CAIRN_", "VIRTUAL_ENV", "PYTEST_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def run(*command, cwd, **more):
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=outside(), capture_output=True, text=True, timeout=3000, **more
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-20000:]}\n{done.stderr[-20000:]}"
    return done.stdout


class Installed:
    def __init__(self, folder):
        self.folder = folder
        self.environment = folder / "environment"
        self.bin = self.environment / "bin"
        run("/usr/bin/python3", "-m", "venv", self.environment, cwd=folder)
        pip = [self.bin / "python", "-m", "pip", "--disable-pip-version-check", "--no-input"]
        run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
        (self.wheel,) = folder.glob("cairn-*.whl")
        run(*pip, "install", "--quiet", self.wheel, cwd=folder)
        self.site = pathlib.Path(self.python("import sysconfig; print(sysconfig.get_path('platlib'))").strip())

    def python(self, code):
        return run(self.bin / "python", "-c", code, cwd=self.folder)

    def names(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            return set(wheel.namelist())


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("wheel"))


def test_the_package_works_with_its_declared_dependencies_alone(installed):
    said = installed.python(
        "import tempfile, numpy as np, cairn, cairn.core, cairn.io, cairn.ps, cairn.serving, cairn.train, cairn.tune\n"
        "import cairn._predict, cairn._ps\n"
        "with cairn.CheckpointManager(tempfile.mkdtemp()) as m:\n"
        "    m.save(1, {'w': np.ones(3)}, blocking=True)\n"
        "    print(m.restore().state['w'].sum(), cairn.__file__)"
    )
    assert said == f"3.0 {installed.site}/cairn/__init__.py\n"


def test_it_has_the_modules_the_types_and_nothing_of_the_tree_s_own(installed):
    names = {name for name in installed.names() if name.startswith("cairn/")}
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "cairn"],
        cwd=ROOT / "python", capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert {"cairn/py.typed", "cairn/_native.pyi", "cairn/_ps.pyi", "cairn/_predict.pyi"} <= set(listed)
    assert set(listed) <= names
    built = {name.split(".")[0] for name in names - set(listed)}
    assert built == {"cairn/_native", "cairn/_ps", "cairn/_predict", "cairn/libcairn_openvino", "cairn/cairn-shim"}
    assert f"cairn/_native{sysconfig.get_config_var('EXT_SUFFIX')}" in names  # of Debian's Python, as this one's


def test_the_command_is_there(installed):
    program = installed.bin / "cairn"
    assert re.match(r"(cairn )?\d+\.\d+\.\d+", run(program, "--version", cwd=installed.folder))
    assert (installed.bin / "cairn-shim").is_file()
    installed.python("import cairn, numpy; cairn.CheckpointManager('made').save(5, {'w': numpy.ones(3)}, blocking=True)")
    assert "1 checkpoint" in run(program, "checkpoint", "verify", "made", cwd=installed.folder)


def test_the_page_is_inside_when_it_was_built_and_the_master_serves_it(installed):
    inside = {name.split("/share/cairn/web/")[1] for name in installed.names() if "/share/cairn/web/" in name}
    built = {str(file.relative_to(PAGE)) for file in PAGE.rglob("*") if file.is_file()}
    assert inside == built
    master = subprocess.Popen(
        [str(installed.bin / "cairn"), "master", "--data-dir", "master", "--listen", "127.0.0.1:0"],
        cwd=installed.folder, env=dict(outside(), HOME=str(installed.folder), XDG_RUNTIME_DIR=str(installed.folder)),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        url = re.search(r"http://\S+", master.stdout.readline()).group(0)
        second = master.stdout.readline()
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read()
    finally:
        master.send_signal(signal.SIGTERM)
        master.communicate(timeout=60)
    if built:
        assert "#code=" in second and text == (PAGE / "index.html").read_bytes()
    else:
        assert "scripts/web" in second and b"scripts/web" in text


def test_the_quickstart_is_killed_and_goes_on(installed):
    # torch is large: the one of this environment, behind all that the new one has itself.
    here = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    (installed.site / "torch_of_the_tests.pth").write_text("\n".join(dict.fromkeys(here)) + "\n")
    quickstart_killed_and_started_again(
        installed.folder, python=installed.bin / "python", environment=outside()
    )
