"""What a machine without the libraries says when Cairn is built on it."""

import os
import subprocess

from example_runs import ROOT


def test_missing_libraries_are_named_at_once_with_the_command_that_installs_them(tmp_path):
    # pkg-config finds nothing there, as on a machine where nothing was installed.
    environment = dict(os.environ, PKG_CONFIG_LIBDIR=str(tmp_path), PKG_CONFIG_PATH="")
    done = subprocess.run(
        ["cmake", "-G", "Ninja", "-S", ROOT, "-B", tmp_path / "build", "-DCAIRN_TESTS=OFF"],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode != 0
    assert "scripts/setup build" in done.stderr
    for package in ("liburing-dev", "libxxhash-dev", "libcurl4-openssl-dev", "libssl-dev"):
        assert package in done.stderr
    assert "libfmt-dev" not in done.stderr  # it needs no pkg-config
