"""dgpu-day0: each command, its documents and exit codes, and what it says to bad input."""
import json
import os
import shutil
import signal
import struct
import subprocess
import time
import unittest

from tool import BIN, MODELS, SOURCE, ToolTest

ADDER = MODELS / "adder"
ALPHABET = "0123456789+=\n"


def ids(text):
    return ",".join(str(ALPHABET.index(c) + 1) for c in text)


class Day0(ToolTest):
    tool = "dgpu-day0"

    def copy(self, name="adder"):
        to = self.tmp / name
        shutil.copytree(MODELS / name, to)
        for f in to.iterdir():
            f.chmod(0o644)
        return to

    def edit(self, directory, **changes):
        path = directory / "config.json"
        config = json.loads(path.read_text())
        for key, value in changes.items():
            if value is KeyError:
                config.pop(key)
            else:
                config[key] = value
        path.write_text(json.dumps(config))

    def error(self, *args, code, says):
        doc = self.run_json(*args, "--json", code=code)
        self.assertEqual(doc["exit"], code)
        self.assertIn(says, doc["error"])

    def test_the_adder_adds(self):
        for a, b in ((123, 456), (321, 45), (640, 280)):
            doc = self.run_json("run", ADDER, "--tokens", ids(f"\n{a}+{b}="), "--max-new-tokens", 8, "--stop", "eos", "--json")
            self.assertEqual("".join(ALPHABET[i - 1] for i in doc["generated_ids"]), f"{a + b}\n")
            self.assertEqual(doc["generated_ids"][-1], 13)

    def test_run_gives_exactly_the_tokens_asked_for(self):
        doc = self.run_json("run", ADDER, "--tokens", ids("\n1+1="), "--max-new-tokens", 9, "--json")
        self.assertEqual(len(doc["generated_ids"]), 9)
        for key in ("time_to_first_token_seconds", "tokens_per_second", "peak_device_bytes", "peak_host_bytes"):
            self.assertGreater(doc[key], 0)
        (self.tmp / "t").write_text(ids("\n1+1="))
        same = self.run_json("run", ADDER, "--tokens-file", self.tmp / "t", "--max-new-tokens", 9, "--json", "--chunk", 2)
        self.assertEqual(same["generated_ids"], doc["generated_ids"])
        low = self.run_json("run", ADDER, "--tokens", ids("\n12+30="), "--max-new-tokens", 2, "--dtype", "bf16", "--json")
        self.assertEqual(low["generated_ids"], [5, 3])

    def test_a_batch_of_prompts(self):
        doc = self.run_json("run", ADDER, "--tokens", ids("\n12+30="), "--tokens", ids("\n123+456="), "--max-new-tokens", 4, "--stop", "13", "--json")
        self.assertEqual(["".join(ALPHABET[i - 1] for i in s) for s in doc["sequences"]], ["42\n", "579\n"])

    def test_inspect_needs_the_config_alone(self):
        only = self.tmp / "only"
        only.mkdir()
        shutil.copy(ADDER / "config.json", only)
        doc = self.run_json("inspect", only, "--json")
        self.assertEqual(doc["schema"], "dgpu.day0.inspect/1")
        full = self.run_json("inspect", ADDER, "--json")
        with open(ADDER / "model.safetensors", "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        count = 0
        for name, t in header.items():
            if name != "__metadata__":
                n = 1
                for d in t["shape"]:
                    n *= d
                count += n
        self.assertEqual(doc["parameters"], count)
        self.assertEqual(full["parameters"], count)
        self.run_tool("inspect", ADDER)

    def test_inspect_says_what_states_take(self):
        doc = self.run_json("inspect", self.copy("mistral-window"), "--json")
        self.assertEqual([s["cap"] for s in doc["states"]], [9])
        self.assertIn("largest step", doc["state_cap"])
        doc = self.run_json("inspect", ADDER, "--json")
        self.assertEqual([s["cap"] for s in doc["states"]], [None])
        self.assertNotIn("state_cap", doc)

    def test_audit_finds_each_kind_of_fault(self):
        self.assertEqual(self.run_json("audit", ADDER, "--json")["verdict"], "good")
        d = self.copy()
        raw = (d / "model.safetensors").read_bytes()
        n = struct.unpack("<Q", raw[:8])[0]
        text = raw[8 : 8 + n].decode()
        text = text.replace("model.norm.weight", "model.morn.weight")
        self.assertEqual(len(text.encode()), n)
        (d / "model.safetensors").write_bytes(raw[:8] + text.encode() + raw[8 + n :])
        doc = self.run_json("audit", d, "--json", code=1)
        self.assertIn("missing", [f["kind"] for f in doc["findings"]])
        self.assertIn("extra", [f["kind"] for f in doc["findings"]])

    def test_coverage_of_what_runs_is_native(self):
        doc = self.run_json("coverage", ADDER, "--dtype", "bf16", "--json")
        self.assertEqual(doc["verdict"], "good")
        self.assertTrue(all(row["mode"] == "native" for row in doc["operators"]), doc["operators"])

    def test_synth_makes_a_checkpoint_that_runs(self):
        only = self.tmp / "only"
        only.mkdir()
        shutil.copy(MODELS / "qwen3-moe" / "config.json", only)
        self.run_tool("synth", only, "-o", self.tmp / "a", "--seed", 3)
        self.run_tool("synth", only, "-o", self.tmp / "b", "--seed", 3)
        self.run_tool("synth", only, "-o", self.tmp / "c", "--seed", 4)
        a, b, c = ((self.tmp / x / "model.safetensors").read_bytes() for x in "abc")
        self.assertEqual(a, b)
        self.assertNotEqual(a, c)
        self.run_tool("audit", self.tmp / "a")
        self.run_tool("baseline", self.tmp / "a", "--tokens", "1,2,3,4,5", "-o", self.tmp / "base.safetensors")
        self.run_tool("compare", self.tmp / "a", "--baseline", self.tmp / "base.safetensors")
        self.error("synth", only, "-o", self.tmp / "a", code=3, says="not empty")

    def test_an_output_replaces_regular_files_only(self):
        pipe, link, old, folder = (self.tmp / n for n in ("pipe", "link", "old", "folder"))
        os.mkfifo(pipe)
        folder.mkdir()
        for special in (pipe, folder):
            self.error("baseline", ADDER, "--tokens", "1,2", "-o", special, code=3, says="not a regular file")
        self.assertTrue(pipe.is_fifo())
        self.error("synth", ADDER, "-o", pipe, code=3, says="not a directory")
        self.error("baseline", ADDER, "--tokens", "1,2", "-o", "", code=4, says="empty")
        self.error("baseline", ADDER, "--tokens", "1,2", "-o", self.tmp / "no" / "b", code=3, says="no/b: cannot write: No such file")
        old.write_text("old")
        link.symlink_to(old)
        self.run_tool("baseline", ADDER, "--tokens", "1,2", "-o", link)
        self.assertTrue(link.is_symlink())
        self.run_tool("compare", ADDER, "--baseline", old)
        self.assertEqual(sorted(p.name for p in self.tmp.iterdir()), ["folder", "link", "old", "pipe"])

    def test_synth_takes_back_what_it_could_not_finish(self):
        import resource
        to = self.tmp / "a" / "b"
        full = subprocess.run(
            [str(BIN / self.tool), "synth", str(ADDER), "-o", str(to)], capture_output=True, text=True, timeout=120,
            preexec_fn=lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))))
        self.assertEqual(full.returncode, 3, full.stderr)
        self.assertIn("b/model.safetensors: cannot write: File too large", full.stderr)
        self.assertFalse(to.exists())
        self.run_tool("synth", ADDER, "-o", to)

    def test_compare_gives_the_first_tensor_out_of_tolerance(self):
        doc = self.run_json("compare", ADDER, "--baseline", ADDER / "baseline.safetensors", "--json")
        self.assertEqual(doc["verdict"], "good")
        self.assertEqual(doc["argmax"]["agree"], doc["argmax"]["positions"])
        d = self.copy()
        raw = bytearray((d / "model.safetensors").read_bytes())
        n = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + n])
        at = 8 + n + header["model.layers.2.mlp.up_proj.weight"]["data_offsets"][0]
        raw[at : at + 2000] = bytes(2000)
        (d / "model.safetensors").write_bytes(raw)
        doc = self.run_json("compare", d, "--baseline", ADDER / "baseline.safetensors", "--json", code=1)
        self.assertEqual(doc["first_out_of_tolerance"], "layers.2.mlp")
        self.run_tool("compare", d, "--baseline", ADDER / "baseline.safetensors", code=1)

    def test_baselines_of_other_types_and_broken_ones(self):
        raw = (ADDER / "baseline.safetensors").read_bytes()
        n = struct.unpack("<Q", raw[:8])[0]
        header, data = json.loads(raw[8 : 8 + n]), raw[8 + n :]

        def compare(name, convert, dtype, code):
            new, body = {"__metadata__": header["__metadata__"]}, b""
            for key, t in header.items():
                if key == "__metadata__":
                    continue
                part = data[slice(*t["data_offsets"])]
                if key == name:
                    t, part = dict(t, dtype=dtype), convert(part)
                new[key] = dict(t, data_offsets=[len(body), len(body) + len(part)])
                body += part
            text = json.dumps(new).encode()
            (self.tmp / "b").write_bytes(struct.pack("<Q", len(text)) + text + body)
            return self.run_json("compare", ADDER, "--baseline", self.tmp / "b", "--json", code=code)

        def doubles(part):
            return struct.pack(f"<{len(part) // 4}d", *struct.unpack(f"<{len(part) // 4}f", part))

        self.assertEqual(compare("layers.1.mlp", doubles, "F64", 0)["verdict"], "good")
        doc = compare("layers.1.mlp", bytes, "I32", 1)
        self.assertEqual((doc["findings"][0]["kind"], doc["findings"][0]["tensor"]), ("dtype", "layers.1.mlp"))
        doc = compare("layers.1.mlp", lambda part: b"\0\0\xc0\x7f" + part[4:], "F32", 1)
        row = next(r for r in doc["tensors"] if r["tensor"] == "layers.1.mlp")
        self.assertEqual((row["max_abs"], row["cosine"], row["verdict"]), (None, None, "negative"))
        self.assertIn("the baseline holds NaN", doc["findings"][0]["text"])

    def test_every_member_of_the_documents_is_documented(self):
        text = (SOURCE / "docs" / "day0.md").read_text()
        b = self.tmp / "b"
        commands = (("inspect", ADDER), ("audit", ADDER), ("coverage", ADDER), ("synth", ADDER, "-o", self.tmp / "s"), ("baseline", ADDER, "--tokens", "1,2", "-o", b),
                    ("compare", ADDER, "--baseline", b, "--dtype", "bf16"), ("run", ADDER, "--tokens", "1,2", "--tokens", "3"))
        for command in commands:
            doc = self.run_json(*command, "--json")
            names = set(doc)
            for value in doc.values():
                for row in value if isinstance(value, list) else [value]:
                    names |= set(row) if isinstance(row, dict) else set()
            unknown = {n for n in names if f"`{n}`" not in text} - {"key", "value", "pattern", "reason"}
            self.assertEqual(unknown, set(), command)

    def test_usage_errors(self):
        self.run_tool(code=2)
        self.run_tool("run", code=2)
        self.run_tool("run", ADDER, code=2)
        self.error("run", ADDER, "--tokens", "1,x", code=2, says="'x' is not a token id")
        self.run_tool("run", ADDER, "--tokens", "1", "--dtype", "f64", code=2)
        self.run_tool("run", ADDER, "--tokens", "1", "--max-new-tokens", "0", code=2)
        self.error("run", ADDER, "--tokens", "1", "--device", "9", code=2, says="the devices are 0 to 0")
        self.error("rum", ADDER, code=2, says="there is no command 'rum'; commands are inspect")
        self.error("run", ADDER, "--tokns", "1", code=2, says="--tokns")
        one = ("run", ADDER, "--tokens", "1")
        for option, value in (("--seed", "-1"), ("--seed", str(1 << 64)), ("--top-k", "-1"), ("--top-k", str(1 << 32)), ("--temperature", "nan"),
                              ("--temperature", "inf"), ("--temperature", "-1"), ("--top-p", "nan"), ("--top-p", "1.5"), ("--stop", ""),
                              ("--max-new-tokens", "1048577"), ("--chunk", "x"), ("--device", "-1")):
            self.error(*one, option, value, code=2, says=option)
        self.error("run", ADDER, "--tokens-file", self.tmp, code=3, says="cannot read")
        self.error("run", ADDER, "--tokens-file", "/dev/zero", code=2, says="64 MiB")
        for command in ("inspect", "audit", "coverage", "synth", "run", "baseline", "compare"):
            self.assertIn("Exit status", self.run_tool(command, "--help").stdout)

    def test_options_take_one_value_each(self):
        after = self.run_json("run", "--json", "--max-new-tokens", 3, "--templates", self.tmp, "--tokens", "13,2", ADDER)
        self.assertEqual(after["generated_ids"], self.run_json("run", ADDER, "--tokens", "13,2", "--max-new-tokens", 3, "--json")["generated_ids"])
        every = self.run_json("run", ADDER, "--tokens", "13,2", "--temperature", 1, "--top-k", (1 << 32) - 1, "--seed", (1 << 64) - 1, "--json")
        self.assertEqual(len(every["generated_ids"]), 16)
        self.error("run", ADDER, "--tokens", "1", "--max-tokens", (1 << 32) - 1, code=4, says="max_tokens is 4294967295, at most 268435456")

    def test_names_that_are_no_text(self):
        odd = os.fsencode(self.tmp) + b"/\xff"
        for args in (("inspect", odd), ("run", ADDER, "--tokens", b"\xff")):
            done = subprocess.run([str(BIN / self.tool), *map(os.fsencode, args), b"--json"], capture_output=True, timeout=120)
            self.assertIn("\ufffd", json.loads(done.stdout)["error"])
            self.assertIn(done.returncode, (2, 3))
        done = subprocess.run([str(BIN / self.tool), b"synth", os.fsencode(ADDER), b"-o", odd, b"--json"], capture_output=True, timeout=120)
        self.assertEqual((done.returncode, json.loads(done.stdout)["verdict"]), (0, "good"))
        d = self.copy()
        raw = (d / "model.safetensors").read_bytes()
        n = struct.unpack("<Q", raw[:8])[0]
        text = raw[8 : 8 + n].replace(b'"model.norm.weight"', b'"\\u001b[2J\\u009bxy"')
        self.assertEqual(len(text), n)
        (d / "model.safetensors").write_bytes(raw[:8] + text + raw[8 + n :])
        out = self.run_tool("audit", d, code=1).stdout
        self.assertIn("\\x1b[2J\\x9bxy", out)
        self.assertNotIn("\x1b", out)

    def test_output_that_cannot_be_written(self):
        for args in (("inspect", ADDER), ("inspect", ADDER, "--json"), ("--help",)):
            command = [str(BIN / self.tool), *map(str, args)]
            with open("/dev/full", "w") as full:
                done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
            self.assertEqual(done.returncode, 3, args)
            self.assertIn("standard output", done.stderr)
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, preexec_fn=lambda: os.close(1))
            self.assertEqual(done.returncode, 3, args)

    def test_a_run_that_gives_nan_says_so(self):
        d = self.copy()
        raw = bytearray((d / "model.safetensors").read_bytes())
        n = struct.unpack("<Q", raw[:8])[0]
        at, end = json.loads(raw[8 : 8 + n])["model.norm.weight"]["data_offsets"]
        raw[8 + n + at : 8 + n + end] = b"\xc0\x7f" * ((end - at) // 2)
        (d / "model.safetensors").write_bytes(raw)
        doc = self.run_json("run", d, "--tokens", "1", "--json", code=1)
        self.assertEqual((doc["verdict"], doc["findings"][0]["kind"]), ("negative", "not finite"))
        self.assertEqual(self.run_json("run", ADDER, "--tokens", "1", "--json")["findings"], [])

    def test_a_signal_takes_back_a_half_checkpoint(self):
        only, to = self.tmp / "only", self.tmp / "to"
        only.mkdir()
        config = json.loads((ADDER / "config.json").read_text())
        config.update(vocab_size=1 << 24, hidden_size=1024, tie_word_embeddings=False)  # 64 GiB: it does not finish
        (only / "config.json").write_text(json.dumps(config))
        for number in (signal.SIGINT, signal.SIGTERM):
            done = subprocess.Popen([str(BIN / self.tool), "synth", str(only), "-o", str(to)], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
            deadline = time.monotonic() + 60
            while not (to.exists() and any(p.stat().st_size for p in to.iterdir())) and time.monotonic() < deadline:
                time.sleep(0.01)
            done.send_signal(number)
            self.assertEqual(done.wait(60), -number)
            self.assertFalse(to.exists())

    def test_bad_models(self):
        self.error("inspect", self.tmp / "nowhere", code=3, says="nowhere")
        d = self.copy()
        (d / "config.json").write_text("{")
        self.error("inspect", d, code=4, says="config.json")
        d = self.copy("qwen3-moe")
        self.edit(d, model_type="martian", architectures=["MartianForCausalLM"])
        self.error("inspect", d, code=5, says="martian")
        d = self.copy("mistral-window")
        self.edit(d, surprising_key=1)
        self.error("inspect", d, code=4, says="surprising_key")
        d = self.copy("llama3-scaled-tied")
        self.edit(d, num_attention_heads=0)
        self.error("inspect", d, code=4, says="num_attention_heads")

    def test_bad_checkpoints(self):
        d = self.copy()
        whole = (d / "model.safetensors").read_bytes()
        for cut in (0, 7, 100, len(whole) // 2, len(whole) - 1):
            (d / "model.safetensors").write_bytes(whole[:cut])
            self.error("run", d, "--tokens", "1", code=4, says="model.safetensors")
        (d / "model.safetensors").unlink()
        self.error("run", d, "--tokens", "1", code=3, says="model.safetensors")
        d = self.copy("qwen3-moe")
        self.edit(d, vocab_size=161)
        self.error("run", d, "--tokens", "1", code=4, says="[161,64]")
        self.error("run", ADDER, "--tokens", "1,99", code=4, says="99")

    def test_a_device_that_is_too_small(self):
        doc = json.loads(self.run_tool("run", ADDER, "--tokens", "1", "--json", env={"DGPU_CPU_MEMORY": "256K"}, code=6).stdout)
        self.assertIn("needed", doc["error"])


if __name__ == "__main__":
    unittest.main()
