#!/usr/bin/python3
"""Feeds check_layers.py good and bad trees, as a separate process, and expects the verdict a reader of the rules would."""

import os
import subprocess
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_layers.py")
GOOD = {
    "src/LAYERS": "# order\nbase\nnet\nstorage\n",
    "src/base/clock.h": "#include <chrono>\n#include <cairn/status.h>\n",
    "src/storage/store.h": '#include <net/if.h>\n#include "base/clock.h"\n#include "storage/local/fs.h"\n',
    "src/storage/local/fs.h": '// #include "cli/flags.h"\n',
    "include/cairn/status.h": "#include <cstdint>\n#include <string_view>\n#include <cairn/dtype.h>\n",
    "examples/cpp/quickstart.cc": "#include <cairn/status.h>\n#include <vector>\n",
}


class CheckLayersTest(unittest.TestCase):
    def run_on(self, **changed):
        files = dict(GOOD, **changed.get("files", {}))
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as out:
                    out.write(text)
            return subprocess.run(["/usr/bin/python3", SCRIPT, root], capture_output=True, text=True, check=False)

    def expect_breach(self, path, text, where):
        result = self.run_on(files={path: text})
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertTrue(result.stdout.startswith(where + ": "), result.stdout)
        self.assertEqual(result.stdout.count("\n"), 1, result.stdout)

    def test_accepts_a_tree_that_keeps_the_order(self):
        result = self.run_on()
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)

    def test_refuses_an_include_of_a_lower_folder(self):
        self.expect_breach("src/base/clock.h", '#pragma once\n\n#include "storage/store.h"\n', "src/base/clock.h:3")

    def test_refuses_a_lower_folder_in_angle_brackets(self):
        self.expect_breach("src/base/clock.h", "#include <storage/store.h>\n", "src/base/clock.h:1")

    def test_refuses_an_oddly_spaced_include(self):
        self.expect_breach("src/base/clock.cc", '  #  include   "net/http.h"\n', "src/base/clock.cc:1")

    def test_refuses_an_include_of_an_unknown_folder(self):
        self.expect_breach("src/storage/store.h", '#include "extras/thing.h"\n', "src/storage/store.h:1")

    def test_refuses_relative_includes(self):
        self.expect_breach("src/storage/store.h", '#include "fs.h"\n', "src/storage/store.h:1")
        self.expect_breach("src/base/clock.cc", '#include "base/../storage/store.h"\n', "src/base/clock.cc:1")

    def test_refuses_code_in_an_unknown_folder(self):
        self.expect_breach("src/extras/thing.cc", "\n", "src/extras/thing.cc:1")

    def test_refuses_public_headers_that_show_the_inside(self):
        self.expect_breach("include/cairn/status.h", '#include "base/clock.h"\n', "include/cairn/status.h:1")

    def test_refuses_public_headers_that_need_other_libraries(self):
        self.expect_breach("include/cairn/status.h", "#include <string>\n#include <fmt/format.h>\n", "include/cairn/status.h:2")

    def test_refuses_examples_that_use_the_inside(self):
        self.expect_breach("examples/cpp/quickstart.cc", '#include "base/clock.h"\n', "examples/cpp/quickstart.cc:1")

    def test_says_so_when_the_order_is_missing(self):
        result = self.run_on(files={"src/LAYERS": "# nothing\n"})
        self.assertEqual(result.returncode, 2)
        self.assertIn("src/LAYERS", result.stderr)


if __name__ == "__main__":
    unittest.main()
