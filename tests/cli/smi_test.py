"""dgpu-smi: documents, exit codes, absent values, machines without devices, broken plugins."""
import csv
import io
import json
import subprocess
import unittest

from tool import BIN, ToolTest


class Smi(ToolTest):
    tool = "dgpu-smi"

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
        device = self.run_json("query", "--fields", "memory.used,commands,utilization", "--format", "json")["devices"][0]
        self.assertEqual([type(device[f]) for f in ("memory.used", "commands", "utilization")], [int, int, float])

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
