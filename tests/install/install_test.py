"""The installed tree: a project that finds it through pkg-config, one through find_package, the README's examples."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD, SOURCE = pathlib.Path(os.environ["DGPU_BUILD"]), pathlib.Path(os.environ["DGPU_SOURCE"])
LIBDIR = os.environ["DGPU_LIBDIR"]
HELLO = SOURCE / "samples" / "hello"


def run(*args, **kw):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=240, **kw)
    if done.returncode != 0:
        raise AssertionError(f"{args}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = tempfile.TemporaryDirectory()
        first = pathlib.Path(cls.tmp.name) / "first"
        run("cmake", "--install", BUILD, "--prefix", first)
        cls.prefix = pathlib.Path(cls.tmp.name) / "moved"  # everything must still be found after a move
        shutil.move(first, cls.prefix)
        cls.env = {**os.environ, "PKG_CONFIG_PATH": str(cls.prefix / LIBDIR / "pkgconfig"), "LD_LIBRARY_PATH": str(cls.prefix / LIBDIR)}

    @classmethod
    def tearDownClass(cls):
        cls.tmp.cleanup()

    def test_pkg_config(self):
        self.assertEqual(run("pkg-config", "--modversion", "dgpu", env=self.env).strip(), os.environ["DGPU_VERSION"])
        flags = run("pkg-config", "--cflags", "--libs", "dgpu", env=self.env).split()
        out = pathlib.Path(self.tmp.name) / "hello"
        run("cc", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", HELLO / "hello.c", "-o", out, *flags)
        self.assertIn("MiB", run(out, env=self.env))

    def test_find_package(self):
        build = pathlib.Path(self.tmp.name) / "consumer"
        run("cmake", "-S", SOURCE / "tests" / "install" / "consumer", "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DHELLO={HELLO / 'hello.c'}")
        run("cmake", "--build", build)
        self.assertIn("MiB", run(build / "hello", env=self.env))

    def test_only_libdgpu_is_needed_of_ours_and_the_soname_has_the_major(self):
        out = run("readelf", "-d", self.prefix / LIBDIR / "libdgpu.so")
        self.assertIn("libdgpu.so." + os.environ["DGPU_VERSION"].split(".")[0], out)

    def test_header_version_is_the_project_version(self):
        text = (self.prefix / "include" / "dgpu" / "types.h").read_text()
        version = ".".join(re.search(rf"DGPU_VERSION_{p} (\d+)", text).group(1) for p in ("MAJOR", "MINOR", "PATCH"))
        self.assertEqual(version, os.environ["DGPU_VERSION"])

    def test_a_copy_of_the_template_passes_the_installed_conformance_program(self):
        conformance = self.prefix / "bin" / "dgpu-conformance"
        if not conformance.exists():
            self.skipTest("built without tests")
        work = pathlib.Path(self.tmp.name) / "vendor"
        [template] = (self.prefix / "share" / "doc").glob("*/backend-template")
        shutil.copytree(template, work)
        flags = run("pkg-config", "--cflags", "dgpu", env=self.env).split()
        manifest = (work / "null.json").read_text().replace("null", "acme")
        (work / "acme.json").write_text(manifest)
        source = (work / "backend.c").read_text().replace('.name = "null"', '.name = "acme"')
        (work / "backend.c").write_text(source)
        run("cc", "-shared", "-fPIC", "-fvisibility=hidden", "-o", work / "libdgpu_backend_acme.so", work / "backend.c", *flags)
        env = {k: v for k, v in self.env.items() if k != "LD_LIBRARY_PATH"}
        out = run(conformance, "--backend", work / "acme.json", "--contract", env=env)
        self.assertIn("contract copies         ok", out)

    def test_tools_run_from_the_installed_tree(self):
        env = {k: v for k, v in self.env.items() if k != "LD_LIBRARY_PATH"}
        self.assertIn("cpu", run(self.prefix / "bin" / "dgpu-smi", env=env))
        self.assertIn("dgpu-day0", run(self.prefix / "bin" / "dgpu-day0", "--version", env=env))
        why = run(self.prefix / "bin" / "dgpu-smi", "backends", "--why", env=env)
        self.assertIn("null", why)

    def test_readme_examples_are_the_samples(self):
        readme = (SOURCE / "README.md").read_text()
        blocks = re.findall(r"<!-- example: (\S+) -->\n```\w+\n(.*?)```", readme, re.S)
        self.assertEqual(len(blocks), 2)
        for path, text in blocks:
            self.assertEqual(text, (SOURCE / path).read_text(), path)

    def test_python_example_runs(self):
        if os.environ["DGPU_PYTHON"] != "ON":
            self.skipTest("the Python package is not part of this build")
        package = next(self.prefix.glob("lib*/python3/dist-packages"))
        out = run(sys.executable, "-B", HELLO / "hello.py", env={**self.env, "PYTHONPATH": str(package)}, cwd=SOURCE)
        self.assertEqual(out.strip(), "[6, 8, 10, 13]")


if __name__ == "__main__":
    unittest.main()
