#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tests scripts/release on a copy of what it reads: a version that is ready, and everything that may be wrong.

usage: release_test.py REPOSITORY
"""
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1]).resolve()
READ = ["include", "ports", "test_package", "docs", "README.md", "CHANGELOG.md", "conanfile.py", "scripts/release",
        "tests/checks/check_versions.py"]


class Release(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.tree = pathlib.Path(self.folder.name)
        for name in READ:
            to = self.tree / name
            to.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, to)
        numbers = re.findall(r"^#define PIPELINING_VERSION_\w+ (\d+)$", (ROOT / "include/pipe/version.hpp").read_text(), re.MULTILINE)
        self.version = ".".join(numbers)
        self.edit("CHANGELOG.md", rf"(## \[{re.escape(self.version)}\] - ).*", r"\g<1>2031-02-03")
        (self.tree / ".gitignore").write_text("/build/\n__pycache__/\n")
        self.git("init", "-q", "-b", "main")
        self.commit()

    def tearDown(self):
        self.folder.cleanup()

    def edit(self, name, pattern, by):
        text, count = re.subn(pattern, by, (self.tree / name).read_text(encoding="utf-8"), count=1)
        self.assertEqual(count, 1, name)
        (self.tree / name).write_text(text, encoding="utf-8")

    def git(self, *words):
        subprocess.run(["git", "-C", self.tree, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "one")

    def release(self, *words):
        return subprocess.run([sys.executable, self.tree / "scripts/release", *words], capture_output=True, text=True, check=False)

    def test_a_version_that_is_ready(self):
        done = self.release(self.version, "--repository", "some/one")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        commit = subprocess.run(["git", "-C", self.tree, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        self.assertIn(f"git tag -a v{self.version} -m 'pipelining {self.version}' {commit}\n", done.stdout)
        folder = self.tree / f"build/release-{self.version}"
        archive = (folder / f"pipelining-{self.version}.tar.gz").read_bytes()
        portfile = (folder / "ports/pipelining/portfile.cmake").read_text()
        self.assertIn(f"SHA512 {hashlib.sha512(archive).hexdigest()}", portfile)
        self.assertIn("REPO some/one", portfile)
        self.assertNotIn("CURRENT_LIST_DIR}/../..", portfile)
        manifest = json.loads((folder / "ports/pipelining/vcpkg.json").read_text())
        self.assertEqual((manifest["version"], manifest["homepage"]), (self.version, "https://github.com/some/one"))
        recipe = (folder / "conanfile.py").read_text()
        for field in ("homepage", "url"):
            self.assertIn(f'\n    {field} = "https://github.com/some/one"\n', recipe)
        compile(recipe, "conanfile.py", "exec")

    def refused(self, reason, version=None):
        done = self.release(version or self.version)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(reason, done.stderr)
        self.assertFalse((self.tree / "build").exists())

    def test_what_is_not_ready(self):
        self.refused("has no heading '## [9.9.9]", "9.9.9")
        (self.tree / "README.md").write_text("changed")
        self.refused("not committed")
        self.git("checkout", "-q", "README.md")
        self.edit("CHANGELOG.md", "2031-02-03", "not released yet")
        self.commit()
        self.refused("says 'not released yet'")
        self.edit("CHANGELOG.md", "not released yet", "2031-02-03")
        self.edit("ports/pipelining/vcpkg.json", r'"version": "[^"]*"', '"version": "0.0.1"')
        self.commit()
        self.refused("vcpkg.json: version 0.0.1")
        self.git("tag", f"v{self.version}")
        self.refused("a version is released once")

    def test_a_wrong_call_says_how(self):
        self.assertIn("usage: scripts/release VERSION", self.release("next").stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
