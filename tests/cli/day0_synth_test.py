"""dgpu-day0 from a config.json alone: every published config that is at hand goes the whole way, or is refused in one line."""
import json
import os
import pathlib
import unittest

from tool import MODELS, ToolTest

SHARED = pathlib.Path(os.environ.get("DGPU_SHARED", "../shared")) / "models"
TOKENS = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,3,1,4,1,5,9,2,6,5,3,5"
RUNS = ("adder", "llama2", "llama3-scaled-tied", "mistral-window", "mixtral", "qwen2-bias", "qwen3", "qwen3-moe")
DESCRIBED = ("deepseek-v4", "qwen3-next")  # the template names operators that the library does not have
STORED = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def configs():
    """Name and directory of every config at hand."""
    found = {d.name: d for d in sorted(SHARED.iterdir()) if (d / "config.json").is_file()} if SHARED.is_dir() else {}
    found.update({d.name: d for d in sorted(MODELS.iterdir()) if (d / "config.json").is_file()})
    return found


class Synth(ToolTest):
    tool = "dgpu-day0"

    def alone(self, name, directory, stored=None):
        """A directory with nothing but the config; `stored` is what it says the weights are kept in."""
        only = self.tmp / "only" / name / (stored or "as-is")
        only.mkdir(parents=True)
        config = json.loads((directory / "config.json").read_text())
        for key in ("dtype", "torch_dtype"):
            if stored and key in config:
                config[key] = stored
        (only / "config.json").write_text(json.dumps(config))
        return only

    def tensors(self, file):
        raw = file.read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        return {k: v for k, v in header.items() if k != "__metadata__"}

    def round_trip(self, name, directory, stored):
        only, out, base = self.alone(name, directory, stored), self.tmp / f"{name}-{stored}", self.tmp / f"{name}-{stored}.base"
        doc = self.run_json("synth", only, "-o", out, "--seed", 5, "--json", "--quiet")
        tensors = self.tensors(out / "model.safetensors")
        self.assertEqual(doc["tensors"], len(tensors))
        self.assertIn(STORED[stored], {t["dtype"] for t in tensors.values()})
        planned, made = (self.run_json("inspect", d, "--json") for d in (only, out))
        for key in ("parameters", "weight_bytes", "tensors", "states", "operators"):
            self.assertEqual(planned[key], made[key], key)
        self.assertEqual(made["weight_bytes"], doc["bytes"])
        self.assertEqual(self.run_json("audit", out, "--json")["findings"], [])
        self.run_tool("baseline", out, "--tokens", TOKENS, "-o", base, "--quiet")
        wanted = set(self.tensors(base)) - {"input_ids"}
        for dtype in ("f32", "bf16", "f16"):
            coverage = self.run_json("coverage", out, "--dtype", dtype, "--json")
            self.assertEqual({row["mode"] for row in coverage["operators"]}, {"native"})
            run = self.run_json("run", out, "--tokens", TOKENS, "--max-new-tokens", 5, "--dtype", dtype, "--json", "--quiet")
            self.assertEqual(len(run["generated_ids"]), 5)
            compare = self.run_json("compare", out, "--baseline", base, "--dtype", dtype, "--json", "--quiet")
            self.assertEqual({t["tensor"] for t in compare["tensors"]}, wanted)
            if dtype == "f32":
                self.assertEqual(compare["argmax"]["agree"], len(TOKENS.split(",")))

    def test_supported_families_go_the_whole_way(self):
        missing = [n for n in RUNS if n not in configs()]
        for name, directory in configs().items():
            if name in RUNS:
                for stored in STORED if name in ("qwen3-moe", "mixtral") else ("bfloat16",):
                    with self.subTest(name=name, stored=stored):
                        self.round_trip(name, directory, stored)
        if missing:
            print("SKIP:", ", ".join(missing), "are only in ../shared, which is not here")

    def test_described_families_stop_at_what_is_missing(self):
        found = [n for n in DESCRIBED if n in configs()]
        if not found:
            self.skipTest("their configs are only in ../shared, which is not here")
        for name in found:
            with self.subTest(name=name):
                out = self.tmp / name
                self.run_tool("synth", self.alone(name, configs()[name]), "-o", out, "--quiet")
                self.assertEqual(self.run_json("audit", out, "--json")["findings"], [])
                self.run_tool("inspect", out)
                coverage = self.run_json("coverage", out, "--json", code=1)
                missing = [row["operator"] for row in coverage["operators"] if row["mode"] == "missing"]
                self.assertTrue(missing)
                for args in (("run", out, "--tokens", "1,2"), ("baseline", out, "--tokens", "1,2", "-o", self.tmp / "b")):
                    line = self.one_line(self.run_tool(*args, "--quiet", code=5).stderr)
                    self.assertTrue(any(op in line for op in missing), line)
                self.assertFalse((self.tmp / "b").exists())

    def test_unknown_families_are_refused_in_one_line(self):
        found = {n: d for n, d in configs().items() if n not in RUNS + DESCRIBED}
        if not found:
            self.skipTest("their configs are only in ../shared, which is not here")
        for name, directory in found.items():
            with self.subTest(name=name):
                only, out = self.alone(name, directory), self.tmp / f"{name}-out"
                family = json.loads((only / "config.json").read_text())["architectures"][0]
                for args in (("synth", only, "-o", out), ("inspect", only), ("audit", only), ("coverage", only), ("run", only, "--tokens", "1")):
                    line = self.one_line(self.run_tool(*args, code=5).stderr)
                    for word in (family, "known families:", "docs/templates.md"):
                        self.assertIn(word, line)
                self.assertFalse(out.exists())

    def one_line(self, text):
        self.assertEqual(len(text.splitlines()), 1, text)
        return text


if __name__ == "__main__":
    unittest.main()
