"""dgpu-smi: documents, exit codes, absent values, machines without devices, broken plugins."""
import csv
import fcntl
import io
import json
import os
import pathlib
import pty
import signal
import struct
import subprocess
import termios
import time
import unicodedata
import unittest

from tool import BIN, ToolTest

PLUGINS = pathlib.Path(os.environ["DGPU_BUILD"]) / "tests" / "plugins"
LONG = 100000  # ms: a command that waits for a device that it need not ask fails by its exit code


def clean(env=None):
    """The environment without settings but those given."""
    return {k: v for k, v in os.environ.items() if not k.startswith("DGPU_") and k != "COLUMNS"} | (env or {})


class Smi(ToolTest):
    tool = "dgpu-smi"

    def plugin(self, name, file, **keys):
        """Environment in which the test plugin `file` is found, beside the cpu device."""
        manifest = {"abi_major": 1, "name": name, "library": str(PLUGINS / f"{file}.so"), **keys}
        (self.tmp / f"{name}.json").write_text(json.dumps(manifest))
        return {"DGPU_BACKEND_PATH": str(self.tmp)}

    def on_terminal(self, width, *args, env=None):
        """What the tool writes on a terminal of that width."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        tool = subprocess.Popen([str(BIN / self.tool), *args], env=clean(env), stdout=theirs, stderr=subprocess.DEVNULL)
        os.close(theirs)
        out = b""
        try:
            while part := os.read(ours, 65536):
                out += part
        except OSError:  # the other side is closed
            pass
        os.close(ours)
        self.assertEqual(tool.wait(timeout=120), 0)
        return out.decode().replace("\r\n", "\n")

    def test_overview_shows_the_cpu_device(self):
        out = self.run_tool().stdout
        self.assertIn("cpu", out)
        self.assertIn("memory.total", out)

    def test_virtual_devices_are_listed_in_order(self):
        env = {"DGPU_CPU_DEVICES": "5", "DGPU_CPU_MEMORY": "64M"}
        doc = self.run_json("query", "--fields", "index,uuid,memory.total", "--format", "json", env=env)
        self.assertEqual(doc["schema"], "dgpu.smi.query/1")
        self.assertEqual(doc["units"]["memory.total"], "bytes")
        self.assertEqual([d["index"] for d in doc["devices"]], [0, 1, 2, 3, 4])
        self.assertEqual({d["memory.total"] for d in doc["devices"]}, {64 << 20})
        self.assertEqual(len({d["uuid"] for d in doc["devices"]}), 5)
        again = self.run_json("query", "--fields", "uuid", "--format", "json", env=env)
        self.assertEqual([d["uuid"] for d in again["devices"]], [d["uuid"] for d in doc["devices"]])

    def test_absent_values_are_null_with_a_reason(self):
        doc = self.run_json("query", "--fields", "power,ecc.uncorrected,pci", "--format", "json")
        for device in doc["devices"]:
            for field in ("power", "ecc.uncorrected", "pci"):
                if device[field] is None:
                    self.assertIn(device["absent"][field], ("unsupported", "denied", "not sampled yet", "device lost", "timeout"))
            self.assertIsNone(device["ecc.uncorrected"])

    def test_csv_is_rfc_4180(self):
        rows = list(csv.reader(io.StringIO(self.run_tool("config", "--format", "csv").stdout)))
        self.assertEqual(rows[0], ["name", "value", "source", "default", "type", "help"])
        self.assertTrue(all(len(r) == 6 for r in rows))
        names = [r[0] for r in rows[1:]]
        self.assertIn("DGPU_CPU_DEVICES", names)
        self.assertEqual(names, sorted(names))

    def test_config_tells_value_and_source(self):
        doc = self.run_json("config", "--format", "json", env={"DGPU_CPU_DEVICES": "3"})
        row = next(s for s in doc["settings"] if s["name"] == "DGPU_CPU_DEVICES")
        self.assertEqual((row["value"], row["source"]), ("3", "environment"))

    def test_topology_matrix(self):
        env = {"DGPU_CPU_DEVICES": "3"}
        out = self.run_tool("topo", "-m", env=env).stdout.splitlines()
        self.assertEqual(out[0].split(), ["device", "0", "1", "2"])
        for i in range(3):
            self.assertEqual(out[1 + i].split()[1 + i], "X")
        doc = self.run_json("topo", "--format", "json", env=env)
        self.assertEqual(len(doc["links"]), 6)

    def test_settings_that_do_not_exist_are_named(self):
        done = self.run_tool("config", env={"DGPU_CPU_DEVICE": "2"})
        self.assertIn("DGPU_CPU_DEVICE is in the environment", done.stderr)
        self.assertEqual(self.run_tool("config", env={"DGPU_CPU_DEVICES": "2"}).stderr, "")

    def test_usage_errors_are_documents(self):
        for args, says in ((("--format", "json", "nonsense"), "nonsense"), (("list", "--format=json", "--x"), "--x"),
                           (("query", "--fields", "name,name", "--format", "json"), "twice")):
            doc = self.run_json(*args, code=2)
            self.assertEqual((doc["schema"], doc["exit"]), ("dgpu.smi.error/1", 2))
            self.assertIn(says, doc["error"])
        self.assertIn("'2' is none of table, json and csv", self.run_tool("--format", "2", code=2).stderr)
        self.assertEqual(self.run_tool("query", "--fields", " name , index ").stdout.split()[:2], ["name", "index"])

    def test_output_that_cannot_be_written(self):
        for args in ((), ("config", "--format", "csv"), ("--help",)):
            with open("/dev/full", "w") as full:
                done = subprocess.run([str(BIN / self.tool), *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
            self.assertEqual(done.returncode, 1, args)
            self.assertIn("standard output", done.stderr)

    def test_odd_bytes_and_whole_numbers(self):
        done = subprocess.run([str(BIN / self.tool), b"--device", b"\xff\x1b", b"--format", b"json"], capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 6)
        self.assertIn("\ufffd", json.loads(done.stdout)["error"])
        self.assertNotIn(b"\x1b", done.stderr)
        device = self.run_json("query", "--fields", "memory.used,commands", "--format", "json")["devices"][0]
        self.assertEqual([type(device[f]) for f in ("memory.used", "commands")], [int, int])

    def test_load_that_nobody_measured_is_absent(self):
        device = self.run_json("query", "--fields", "utilization", "--format", "json")["devices"][0]
        self.assertIsNone(device["utilization"])
        self.assertEqual(device["absent"], {"utilization": "not sampled yet"})
        self.assertEqual(self.run_tool().stdout.splitlines()[2].split()[-1], "-")

    def test_a_stuck_device_costs_what_it_does_not_say(self):
        env = self.plugin("stuck", "hang_in_metric")
        fields = "name,memory.total,memory.used,utilization,power"
        done = self.run_tool("query", "--fields", fields, "--format", "json", "--timeout", 1000, env=env, code=7)
        healthy, stuck = json.loads(done.stdout)["devices"]
        self.assertEqual(healthy["absent"]["power"], "unsupported")
        self.assertEqual((stuck["memory.total"], stuck["memory.used"]), (64 << 20, 0))
        self.assertEqual(stuck["absent"], {"utilization": "timeout", "power": "timeout"})
        self.assertEqual(done.stderr, "dgpu-smi: device 1: did not answer in time\n")
        self.assertIn("stuck", self.run_tool("--timeout", 1000, env=env, code=7).stdout)

    def test_nobody_waits_for_a_stuck_device_that_is_not_asked(self):
        env = self.plugin("stuck", "hang_in_metric")
        for args in (["list"], ["topo"], ["topo", "-m"], ["backends"], ["query", "--fields", "name,memory.used"],
                     ["--device", "0"], ["query", "--device", "index:0"]):
            self.assertEqual(self.run_tool(*args, "--timeout", LONG, env=env).stderr, "", args)
        uuid = self.run_json("list", "--format", "json", env=env)["devices"][0]["uuid"]
        self.run_tool("query", "--device", uuid, "--timeout", LONG, env=env)
        self.run_tool("--device", "name:none", "--timeout", LONG, env=env, code=6)

    def test_a_backend_that_does_not_start(self):
        env = self.plugin("stuck", "hang_in_metric", probe="query")  # the probe does not see it hang
        env.update(DGPU_TEST_HANG_AT_START="1", DGPU_LOG_LEVEL="info")
        for args in ([], ["list"], ["topo"], ["backends", "--why"]):
            done = self.run_tool(*args, "--format", "json", "--discovery-timeout", 300, env=env, code=7)
            doc = json.loads(done.stdout)
            self.assertEqual((doc["schema"], doc["exit"]), ("dgpu.smi.error/1", 7))
            self.assertIn("--discovery-timeout", doc["error"])
            self.assertEqual([l for l in done.stderr.splitlines() if "trying" in l][-1],
                             f"dgpu [info] backend: {self.tmp}/stuck.json: trying")
        for args in (["config"], ["query", "--list-fields"], ["--help"], ["--version"]):  # these need no backend
            self.run_tool(*args, env=env)

    def test_a_backend_that_hangs_in_its_probe_is_refused(self):
        env = self.plugin("stuck", "hang_in_metric")
        env.update(DGPU_TEST_HANG_AT_START="1", DGPU_BACKEND_PROBE_TIMEOUT_MS="300")
        doc = self.run_json("backends", "--why", "--format", "json", env=env)
        self.assertIn("300 ms", next(b for b in doc["backends"] if b["name"] == "stuck")["reason"])

    def test_killed_while_a_plugin_is_probed(self):
        env = clean(self.plugin("stuck", "hang_in_metric"))
        env.update(DGPU_TEST_HANG_AT_START="1", DGPU_BACKEND_PROBE_TIMEOUT_MS="3600000")
        tool = subprocess.Popen([str(BIN / self.tool)], env=env, stdout=subprocess.DEVNULL)
        self.addCleanup(tool.wait)
        self.addCleanup(tool.kill)
        end = time.monotonic() + 60
        children = []
        while not children and time.monotonic() < end:
            for task in pathlib.Path(f"/proc/{tool.pid}/task").iterdir():
                children += (task / "children").read_text().split()
        self.assertEqual(len(children), 1)

        def runs():
            try:
                return pathlib.Path(f"/proc/{children[0]}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
            except (FileNotFoundError, ProcessLookupError):
                return False

        tool.send_signal(signal.SIGTERM)
        self.assertEqual(tool.wait(timeout=60), -signal.SIGTERM)
        while runs() and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(runs(), "the probing process outlives its parent")

    def test_names_do_not_steer_the_terminal(self):
        env = self.plugin("stuck", "hang_in_metric")
        done = subprocess.run([str(BIN / self.tool), "list"], env=clean(env), capture_output=True, timeout=120)
        self.assertIn(b'a "quoted",\\x0aname\\x1b[31m\\xff\n', done.stdout)
        rows = list(csv.reader(io.StringIO(self.run_tool("list", "--format", "csv", env=env).stdout, newline="")))
        self.assertEqual([len(r) for r in rows], [4, 4, 4])
        name = 'a "quoted",\nname\x1b[31m\ufffd'
        self.assertEqual(rows[2][3], name)
        self.assertEqual(self.run_json("list", "--format", "json", env=env)["devices"][1]["name"], name)

    def test_marks_that_turn_text_and_overlong_forms_are_shown(self):
        env = clean(self.plugin("odd", "odd_device"))
        for name, shown in ((b"a\xe2\x80\xaeb", rb"a\u{202e}b"), (b"a\xc2\x9b1m", rb"a\u{9b}1m"), (b"a\xc0\x9bb", rb"a\xc0\x9bb"),
                            (b"a\xed\xa0\x80b", rb"a\xed\xa0\x80b"), (b"end\xe5\x8a", rb"end\xe5\x8a"), (b"\xe2\x82\xac", b"\xe2\x82\xac")):
            out = subprocess.run([str(BIN / self.tool), "query", "--fields", "name"], env=env | {"DGPU_TEST_NAME": os.fsdecode(name)},
                                 capture_output=True, timeout=120).stdout
            self.assertEqual(out.splitlines()[-1], shown)

    def test_columns_are_straight_where_characters_are_wide(self):
        env = self.plugin("odd", "odd_device") | {"DGPU_TEST_NAME": "\u52a0\u901f\u5361 e\u0301"}  # two places each; none for the accent
        lines = self.run_tool("query", "--fields", "name,backend", env=env).stdout.splitlines()

        def place(line, word):
            return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
                       for c in line[:line.index(word)])

        self.assertEqual({place(lines[0], "backend"), place(lines[1], "cpu"), place(lines[2], "odd"), place(lines[3], "odd")},
                         {place(lines[0], "backend")})

    def test_values_that_are_no_numbers(self):
        env = self.plugin("odd", "odd_device")
        device = self.run_json("query", "--device", "1", "--format", "json", env=env)["devices"][0]
        self.assertEqual((device["absent"]["temperature"], device["absent"]["power"]), ("not a number", "not a number"))
        self.assertEqual(device["ecc.uncorrected"], 1e300)
        self.run_tool("query", env=env)

    def test_links_that_cannot_be_read(self):
        env = self.plugin("odd", "odd_device")
        doc = self.run_json("topo", "--format", "json", env=env)
        link = next(l for l in doc["links"] if (l["from"], l["to"]) == (1, 2))
        self.assertIsNone(link["link"])
        self.assertIn("the cable is out", link["absent"]["link"])
        self.assertEqual(self.run_tool("topo", "-m", "--device", 1, env=env).stdout.splitlines()[:2],
                         ["device  0     1  2", "1       HOST  X  -"])

    def test_a_narrow_terminal_gets_blocks(self):
        wide = self.on_terminal(200, "list").splitlines()
        self.assertEqual((len(wide), wide[0].split()), (2, ["index", "uuid", "backend", "name"]))
        narrow = self.on_terminal(50, "list", env={"DGPU_CPU_DEVICES": "2"}).splitlines()
        self.assertEqual([l.split()[0] if l else "" for l in narrow], ["index", "uuid", "backend", "name", "", "index", "uuid", "backend", "name"])
        self.assertTrue(all(len(l) <= 50 for l in narrow), narrow)
        self.assertEqual(self.on_terminal(50, "list", env={"COLUMNS": "200"}).splitlines(), wide)
        self.assertEqual(self.on_terminal(10, "list", "--format", "csv").splitlines()[0], "index,uuid,backend,name")
        self.assertEqual(self.run_tool("list", env={"COLUMNS": "10"}).stdout.splitlines(), wide)  # a pipe has no width

    def test_unknown_fields_are_answered_with_the_known_ones(self):
        known = [f["field"] for f in self.run_json("query", "--list-fields", "--format", "json")["fields"]]
        error = self.run_json("query", "--fields", "name,temprature", "--format", "json", code=2)["error"]
        self.assertIn("'temprature'", error)
        self.assertEqual(error.partition("known are ")[2].split(", "), known)

    def test_a_reader_that_leaves_is_no_failure(self):
        for args in ([], ["config", "--format", "json"], ["--help"], ["--version"]):
            ours, theirs = os.pipe()
            os.close(ours)
            done = subprocess.run([str(BIN / self.tool), *args], env=clean(), stdout=theirs, stderr=subprocess.PIPE, text=True,
                                  timeout=120, preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL))
            os.close(theirs)
            self.assertEqual((done.returncode, done.stderr), (0, ""), args)

    def test_a_machine_without_devices(self):
        (self.tmp / "bad.json").write_text("{")
        env = {"DGPU_CPU_TOPOLOGY": str(self.tmp / "bad.json"), "DGPU_LOG_LEVEL": "off"}
        for args, code in (([], 5), (["list"], 0), (["query"], 0), (["topo"], 0), (["topo", "-m"], 0)):
            for form in ("table", "json", "csv"):
                done = self.run_tool(*args, "--format", form, env=env, code=code)
                self.assertIn("no device found", done.stderr)
        self.assertEqual(self.run_json("--format", "json", env=env, code=5)["devices"], [])
        self.run_tool("list", "--device", "0", env=env, code=6)
        doc = self.run_json("backends", "--why", "--format", "json", env=env)
        self.assertIn("bad.json", doc["backends"][0]["reason"])

    def test_exit_codes(self):
        self.run_tool("query", "--fields", "nonsense", code=2)
        self.run_tool("--format", "xml", code=2)
        self.run_tool("frobnicate", code=2)
        err = self.run_json("query", "--device", "index:77", "--format", "json", code=6)
        self.assertEqual(err["exit"], 6)
        self.assertIn("Exit status", self.run_tool("--help").stdout)
        self.assertIn("Exit status", self.run_tool("query", "--help").stdout)
        self.run_tool("--version")

    def test_a_device_is_chosen_by_uuid(self):
        env = {"DGPU_CPU_DEVICES": "3"}
        uuid = self.run_json("list", "--format", "json", env=env)["devices"][2]["uuid"]
        doc = self.run_json("list", "--device", "uuid:" + uuid, "--format", "json", env=env)
        self.assertEqual([d["index"] for d in doc["devices"]], [2])

    def test_broken_plugins_are_refused_with_a_reason_and_hurt_nobody(self):
        (self.tmp / "libbroken.so").write_text("this is no ELF file")
        (self.tmp / "broken.json").write_text('{"name": "broken", "library": "libbroken.so"}')
        (self.tmp / "garbage.json").write_text("{")
        env = {"DGPU_BACKEND_PATH": str(self.tmp)}
        doc = self.run_json("backends", "--why", "--format", "json", env=env)
        refused = [b for b in doc["backends"] if "broken" in b["tried"] or "garbage" in b["tried"]]
        self.assertEqual(len(refused), 2)
        for b in refused:
            self.assertFalse(b["taken"])
            self.assertTrue(b["reason"])
        self.assertIn("cpu", self.run_tool("backends", env=env).stdout)
        self.assertIn("cpu", self.run_tool(env=env).stdout)


if __name__ == "__main__":
    unittest.main()
