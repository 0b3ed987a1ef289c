"""Runs the built tools as a user would."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["DGPU_BIN"])
SOURCE = pathlib.Path(os.environ["DGPU_SOURCE"])
MODELS = SOURCE / "tests" / "data" / "models"


class ToolTest(unittest.TestCase):
    tool = ""

    def setUp(self):
        self._tmp = tempfile.TemporaryDirectory()
        self.tmp = pathlib.Path(self._tmp.name)

    def tearDown(self):
        self._tmp.cleanup()

    def run_tool(self, *args, env=None, code=0, timeout=120):
        """Output of the tool; its exit status must be `code`."""
        full = {k: v for k, v in os.environ.items() if not k.startswith("DGPU_")}
        full.update(env or {})
        done = subprocess.run([str(BIN / self.tool), *map(str, args)], env=full, capture_output=True, text=True, timeout=timeout)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}\n{done.stderr}")
        return done

    def run_json(self, *args, **kw):
        return json.loads(self.run_tool(*args, **kw).stdout)
