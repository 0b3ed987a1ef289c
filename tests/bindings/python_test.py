"""The Python package: what it does, and the traps that stock typemaps fall into."""
import gc
import os
import pathlib
import subprocess
import sys
import threading
import time
import unittest
import weakref

import numpy as np

import dgpu

MODELS = pathlib.Path(os.environ["DGPU_SOURCE"]) / "tests" / "data" / "models"


class Base(unittest.TestCase):
    def setUp(self):
        self.device = dgpu.devices()[0]
        self.context = dgpu.Context([self.device])
        self.stream = self.context.stream(self.device)

    def tearDown(self):
        self.stream.close()
        self.context.close()


class Devices(unittest.TestCase):
    def test_devices_tell_what_they_are(self):
        devices = dgpu.devices()
        self.assertEqual([d.ordinal for d in devices[:2]], [0, 1])
        self.assertEqual(devices[0].memory_bytes, 256 << 20)
        self.assertEqual(devices[0].backend, "cpu")
        self.assertIn("256 MiB", repr(devices[0]))

    def test_version_and_settings(self):
        self.assertRegex(dgpu.version(), r"^\d+\.\d+\.\d+$")
        self.assertEqual(dgpu.config("DGPU_CPU_DEVICES"), "2")
        with self.assertRaises(dgpu.NotFound):
            dgpu.config("DGPU_NO_SUCH_SETTING")


class Errors(Base):
    def test_exceptions_carry_status_text_and_object(self):
        with self.assertRaises(dgpu.InvalidAttribute) as caught:
            dgpu.Op("rms_norm", epsilon=1.0)
        e = caught.exception
        self.assertEqual(e.name, "INVALID_ATTRIBUTE")
        self.assertLess(e.status, 0)
        self.assertIn("epsilon", str(e))
        self.assertIn("rms_norm", str(e))
        self.assertTrue(e.function.startswith("dgpuOpDesc"))
        self.assertIsInstance(e, dgpu.Error)
        self.assertIsInstance(e, RuntimeError)

    def test_a_failing_constructor_raises(self):
        with self.assertRaises(dgpu.Error):
            dgpu.Device(99)
        with self.assertRaises(dgpu.NotFound):
            dgpu.Op("no_such_operator")
        with self.assertRaises(dgpu.Error):
            dgpu.Model("/nowhere")

    def test_out_of_memory_is_a_memory_error(self):
        with self.assertRaises(MemoryError) as caught:
            self.context.alloc(self.device, 1 << 30)
        self.assertIsInstance(caught.exception, dgpu.OutOfMemory)
        self.assertIn(str(1 << 30), str(caught.exception))

    def test_closed_objects_answer_invalid_handle(self):
        self.stream.close()
        self.stream.close()
        with self.assertRaises(dgpu.InvalidHandle):
            self.stream.synchronize()
        event = self.context.event()
        self.context.close()
        with self.assertRaises(dgpu.InvalidHandle):
            event.query()

    def test_errors_are_of_the_thread_that_failed(self):
        wrong = []

        def fail(name):
            for _ in range(200):
                try:
                    dgpu.Op(name)
                except dgpu.NotFound as e:
                    if name not in str(e):
                        wrong.append(str(e))

        threads = [threading.Thread(target=fail, args=(f"missing_{i}",)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])

    def test_wrong_python_types_raise_type_errors(self):
        memory = self.context.alloc(self.device, 64)
        for bad in (3, "text", None, [1, 2]):
            with self.assertRaises(TypeError):
                self.stream.copy_in(memory, bad)
        with self.assertRaises((TypeError, ValueError)):
            self.context.alloc(self.device, "many")
        with self.assertRaises(ValueError):
            self.stream.synchronize(timeout=-1)


class Buffers(Base):
    def test_numpy_round_trip(self):
        for dtype in (np.float32, np.int64, np.uint8, np.float16):
            a = (np.random.default_rng(1).random((37, 5)) * 100).astype(dtype)
            with self.context.array(self.stream, a) as memory:
                self.assertEqual(memory.size, a.nbytes)
                b = np.empty_like(a)
                self.stream.copy_out(b, memory)
            np.testing.assert_array_equal(a, b)

    def test_offsets(self):
        memory = self.context.array(self.stream, np.arange(16, dtype=np.int32))
        out = np.empty(4, np.int32)
        self.stream.copy_out(out, memory, offset=8 * 4)
        np.testing.assert_array_equal(out, [8, 9, 10, 11])
        self.stream.copy_in(memory, np.array([-1], np.int32), offset=15 * 4)
        self.stream.copy_out(out, memory, offset=12 * 4)
        np.testing.assert_array_equal(out, [12, 13, 14, -1])
        with self.assertRaises(dgpu.InvalidAddress):
            self.stream.copy_in(memory, np.zeros(17, np.int32))

    def test_layout_and_writability_are_checked(self):
        memory = self.context.alloc(self.device, 1 << 12)
        with self.assertRaises(BufferError):
            self.stream.copy_in(memory, np.zeros((8, 8))[:, ::2])
        with self.assertRaises(BufferError):
            self.stream.copy_out(b"read-only bytes", memory)
        frozen = np.zeros(8)
        frozen.flags.writeable = False
        with self.assertRaises(BufferError):
            self.stream.copy_out(frozen, memory)

    def test_a_buffer_stays_exported_until_the_copy_is_done(self):
        gate = threading.Event()
        kernel = dgpu.Kernel(self.context, lambda i: gate.wait(30), "gx")
        memory = self.context.alloc(self.device, 1 << 16)
        data = bytearray(b"x" * (1 << 16))
        kernel.launch(self.stream, 1)
        pending = self.stream.copy_in(memory, data, wait=False)
        with self.assertRaises(BufferError):
            data.extend(b"more")
        self.assertFalse(pending.done())
        gate.set()
        pending.wait(30)
        self.assertTrue(pending.done())
        data.extend(b"more")

    def test_another_thread_cannot_resize_a_buffer_in_use(self):
        memory = self.context.alloc(self.device, 1 << 22)
        data = bytearray(1 << 22)
        stop = threading.Event()
        errors = []

        def resize():
            while not stop.is_set():
                try:
                    data.append(0)
                    del data[-1]
                except BufferError:
                    errors.append(1)

        t = threading.Thread(target=resize)
        t.start()
        try:
            for _ in range(40):
                try:
                    self.stream.copy_in(memory, data)
                except dgpu.InvalidAddress:  # caught it one byte longer
                    pass
        finally:
            stop.set()
            t.join()

    def test_a_forgotten_pending_copy_keeps_its_buffer(self):
        gate = threading.Event()
        kernel = dgpu.Kernel(self.context, lambda i: gate.wait(30), "gx")
        memory = self.context.alloc(self.device, 1 << 20)
        kernel.launch(self.stream, 1)
        expected = np.arange(1 << 18, dtype=np.float32)
        self.stream.copy_in(memory, expected.copy(), wait=False)
        gc.collect()
        junk = [np.zeros(1 << 18, np.float32) for _ in range(8)]
        gate.set()
        self.stream.synchronize(30)
        out = np.empty(1 << 18, np.float32)
        self.stream.copy_out(out, memory)
        np.testing.assert_array_equal(out, expected)
        del junk


class Streams(Base):
    def test_the_gil_is_free_while_a_call_blocks(self):
        gate = threading.Event()
        kernel = dgpu.Kernel(self.context, lambda i: gate.wait(30), "gx")
        kernel.launch(self.stream, 1)
        counted = []

        def count():
            for i in range(1000):
                counted.append(i)
            gate.set()  # only a running Python thread can end the wait below

        t = threading.Thread(target=count)
        t.start()
        self.stream.synchronize(30)
        t.join()
        self.assertEqual(len(counted), 1000)

    def test_timeouts_and_query(self):
        gate = threading.Event()
        kernel = dgpu.Kernel(self.context, lambda i: gate.wait(30), "gx")
        kernel.launch(self.stream, 1)
        with self.assertRaises(dgpu.Timeout) as caught:
            self.stream.synchronize(timeout=0.01)
        self.assertIsInstance(caught.exception, TimeoutError)
        self.assertFalse(self.stream.query())
        gate.set()
        self.stream.synchronize(30)
        self.assertTrue(self.stream.query())

    def test_events_order_streams_and_measure(self):
        other = self.context.stream(self.device)
        start, end = self.context.event(timing=True), self.context.event(timing=True)
        gate = threading.Event()
        order = []
        first = dgpu.Kernel(self.context, lambda i: (gate.wait(30), order.append(1)), "gx")
        second = dgpu.Kernel(self.context, lambda i: order.append(2), "gx")
        start.record(self.stream)
        self.stream.synchronize(30)  # it has its time now; on a busy machine it might get it late
        first.launch(self.stream, 1)
        end.record(self.stream)
        end.wait(other)
        second.launch(other, 1)
        time.sleep(0.01)
        self.assertEqual(order, [])
        gate.set()
        other.synchronize(30)
        self.assertEqual(order, [1, 2])
        self.assertGreaterEqual(end.elapsed(start), 0.009)

    def test_objects_may_go_in_any_order(self):
        context = dgpu.Context([self.device])
        stream = context.stream(self.device)
        event = context.event()
        memory = context.array(stream, b"12345678")
        alive = weakref.ref(stream)
        event.record(stream)
        del context, stream
        gc.collect()
        self.assertIsNone(alive())
        event.synchronize(30)
        memory.close()


class Kernels(Base):
    def test_a_python_callable_is_a_kernel(self):
        import ctypes

        def saxpy(i, a, x, y):
            xs = ctypes.cast(x, ctypes.POINTER(ctypes.c_float))
            ys = ctypes.cast(y, ctypes.POINTER(ctypes.c_float))
            ys[i] += a * xs[i]

        x, y = np.arange(10, dtype=np.float32), np.ones(10, np.float32)
        mx, my = self.context.array(self.stream, x), self.context.array(self.stream, y)
        kernel = dgpu.Kernel(self.context, saxpy, "gx,f32,ptr,ptr")
        kernel.launch(self.stream, 10, 2.5, mx, my)
        out = np.empty_like(y)
        self.stream.copy_out(out, my)
        np.testing.assert_array_equal(out, y + np.float32(2.5) * x)

    def test_arguments_are_checked(self):
        kernel = dgpu.Kernel(self.context, lambda i, n: None, "gx,i32")
        with self.assertRaises(TypeError):
            kernel.launch(self.stream, 1)
        with self.assertRaises(OverflowError):
            kernel.launch(self.stream, 1, 1 << 31)
        with self.assertRaises(ValueError):
            dgpu.Kernel(self.context, lambda: None, "quaternion")
        with self.assertRaises(dgpu.InvalidArgument):
            dgpu.Kernel(self.context, 1234, "quaternion")

    def test_all_argument_types_arrive(self):
        seen = []
        kernel = dgpu.Kernel(self.context, lambda *a: seen.append(a), "gx,gy,gz,i32,u32,i64,u64,f32,f64,ptr")
        kernel.launch(self.stream, (1, 2, 1), -5, 6, -(1 << 40), 1 << 63, 1.5, -2.25, None)
        self.stream.synchronize(30)
        self.assertEqual(seen, [(0, 0, 0, -5, 6, -(1 << 40), 1 << 63, 1.5, -2.25, None), (0, 1, 0, -5, 6, -(1 << 40), 1 << 63, 1.5, -2.25, None)])


class Operators(Base):
    def test_rms_norm(self):
        x = np.random.default_rng(3).standard_normal((7, 64)).astype(np.float32)
        w = np.random.default_rng(4).standard_normal(64).astype(np.float32)
        op = dgpu.Op("rms_norm", eps=1e-5, weight_offset=0, cast="after_weight")
        op.tensor("x", "f32", x.shape).tensor("weight", "f32", w.shape)
        self.assertEqual(op.infer("out"), ("f32", [7, 64]))
        op.tensor("out", "f32", x.shape)
        plan = op.plan(self.context, self.device)
        self.assertEqual(plan.mode, "native", plan.reason)
        out = self.context.alloc(self.device, x.nbytes)
        plan.execute(self.stream, {"x": self.context.array(self.stream, x), "weight": self.context.array(self.stream, w), "out": out})
        got = np.empty_like(x)
        self.stream.copy_out(got, out)
        want = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * w
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
        with self.assertRaises(ValueError):
            plan.execute(self.stream, {"x": out})

    def test_every_operator_has_a_schema(self):
        self.assertIn("attention", dgpu.ops())
        for name in dgpu.ops():
            schema = dgpu.op_schema(name)
            self.assertEqual(schema["name"], name)
            self.assertTrue(schema["ports"])


class Models(Base):
    def test_the_adder_adds(self):
        with dgpu.Model(MODELS / "adder") as model:
            self.assertEqual(model.family, "llama")
            self.assertFalse(model.loaded)
            model.load(self.context, self.device)
            self.assertTrue(model.loaded)
            with model.session(max_tokens=32) as session:
                prompt = [13, 2, 3, 4, 11, 5, 6, 7, 12]
                self.assertEqual(session.generate(self.stream, prompt, max_new_tokens=4), [6, 8, 10, 13])
                sequence = session.sequence()
                session.step(self.stream, sequence, prompt)
                self.assertEqual(len(sequence), 9)
                dtype, shape, address = session.logits()
                self.assertEqual((dtype, shape), ("f32", [1, 16]))
                logits = np.empty(16, np.float32)
                self.stream.copy_out(logits, address)
                self.assertEqual(int(logits.argmax()), 6)
                sequence.truncate(3)
                self.assertEqual(len(sequence), 3)
                self.assertEqual(sequence.describe()["length"], 3)

    def test_documents(self):
        model = dgpu.Model(str(MODELS / "adder"))
        self.assertEqual(model.inspect()["parameters"], model.parameters)
        self.assertEqual(model.audit()["verdict"], "good")
        model.load(self.context, self.device, "bf16")
        doc = model.compare(self.context, self.device, MODELS / "adder" / "baseline.safetensors", "bf16")
        self.assertEqual(doc["verdict"], "good")
        with self.assertRaisesRegex(dgpu.Error, "dtype is f32, the model was loaded for bf16"):
            model.compare(self.context, self.device, MODELS / "adder" / "baseline.safetensors")

    def test_session_before_load(self):
        with self.assertRaises(dgpu.InvalidState):
            dgpu.Model(MODELS / "adder").session()


class Arguments(Base):
    """What Python code gets wrong is refused in Python's words, and nothing is cut or guessed."""

    def test_numbers(self):
        for bad in ("8", 1.5, None):
            with self.assertRaises(TypeError, msg=bad):
                self.context.alloc(self.device, bad)
        for bad in (-1, 1 << 64):
            with self.assertRaisesRegex(OverflowError, "size is"):
                self.context.alloc(self.device, bad)
        memory = self.context.alloc(self.device, np.int64(8))
        with self.assertRaises(TypeError):
            self.stream.copy_in(1.5, b"12345678")
        with self.assertRaises(OverflowError):
            self.stream.copy_in(-1, b"12345678")
        for bad in (-1, float("nan")):
            with self.assertRaisesRegex(ValueError, "timeout is"):
                self.stream.synchronize(bad)
        self.stream.copy_in(memory, b"12345678")
        self.stream.synchronize(float("inf"))

    def test_objects(self):
        for call in (lambda: dgpu.Context([0]), lambda: self.context.alloc(0, 8), lambda: self.context.stream(None),
                     lambda: self.context.event().record(1), lambda: self.context.array(self.device, b"1")):
            with self.assertRaisesRegex(TypeError, "must be a dgpu"):
                call()
        with self.assertRaises(ValueError):
            dgpu.Context([])
        with self.assertRaisesRegex(BufferError, "objects"):
            self.context.array(self.stream, np.array([object()]))

    def test_closed_memory(self):
        memory = self.context.alloc(self.device, 8)
        memory.close()
        for call in (lambda: memory.address, lambda: self.stream.copy_in(memory, b"12345678")):
            with self.assertRaisesRegex(dgpu.InvalidHandle, "closed"):
                call()
        self.assertIn("closed", repr(memory))
        self.assertEqual(len(self.context.array(self.stream, b"")), 0)

    def test_grids(self):
        kernel = dgpu.Kernel(self.context, lambda i: None, "gx")
        for bad in ((), (1, 1, 1, 1)):
            with self.assertRaises(ValueError):
                kernel.launch(self.stream, bad)
        with self.assertRaises(TypeError):
            kernel.launch(self.stream, 1.5)

    def test_paths_and_tokens(self):
        adder = MODELS / "adder"
        self.assertEqual(dgpu.Model(os.fsencode(adder), templates=MODELS).family, "llama")
        with self.assertRaises(TypeError):
            dgpu.Model(None)
        with self.assertRaisesRegex(ValueError, "null character"):
            dgpu.Model(f"{adder}\0x")
        session = dgpu.Model(adder).load(self.context, self.device).session(max_tokens=32)
        for bad in ("123", [1.7], [None]):
            with self.assertRaisesRegex(TypeError, "token must be an integer"):
                session.generate(self.stream, bad)
        with self.assertRaises(OverflowError):
            session.generate(self.stream, [1 << 31])
        with self.assertRaises(dgpu.InvalidArgument):
            session.generate(self.stream, [-1])
        # Every top_k is one: above the vocabulary it cuts nothing, and the stream lives on.
        every = session.generate(self.stream, [13, 2], 6, temperature=1, seed=5)
        for top_k in (1000, (1 << 31), (1 << 32) - 1):
            self.assertEqual(session.generate(self.stream, [13, 2], 6, temperature=1, seed=5, top_k=top_k), every)


class Process(unittest.TestCase):
    def run_python(self, code):
        return subprocess.run([sys.executable, "-B", "-X", "faulthandler", "-c", code], capture_output=True, text=True, timeout=60)

    def test_exit_with_work_under_way_is_clean(self):
        done = self.run_python("import dgpu\nd = dgpu.devices()[0]\nc = dgpu.Context([d])\ns = c.stream(d)\n"
                               "m = c.alloc(d, 1 << 24)\nfor _ in range(50): s.fill(m, 7, 1, 1 << 24)\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_exit_with_python_kernels_under_way_is_clean(self):
        for _ in range(8):  # where the kernel stands when the interpreter goes is not always the same
            done = self.run_python("import dgpu, time\nd = dgpu.devices()[0]\nc = dgpu.Context([d])\ns = c.stream(d)\n"
                                   "k = dgpu.Kernel(c, lambda i: time.sleep(0.001), 'gx')\nk.launch(s, 1000)\n"
                                   "k.launch(s, 1000)\n")
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_exit_does_not_wait_for_a_kernel_that_never_returns(self):
        done = self.run_python("import dgpu, threading\nd = dgpu.devices()[0]\nc = dgpu.Context([d])\ns = c.stream(d)\n"
                               "inside = threading.Event()\n"
                               "k = dgpu.Kernel(c, lambda i: (inside.set(), threading.Event().wait()), 'gx')\n"
                               "k.launch(s, 2)\ninside.wait()\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_use_after_shutdown_raises(self):
        done = self.run_python("import dgpu\nd = dgpu.devices()[0]\nc = dgpu.Context([d])\ndgpu.shutdown()\n"
                               "try:\n    c.stream(d)\nexcept dgpu.Error as e:\n    print(e.name)\n"
                               "dgpu.init()\nprint(len(dgpu.devices()) > 0)\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("True", done.stdout)

    def test_fork_answers_forked(self):
        done = self.run_python("import os, dgpu\nd = dgpu.devices()[0]\nc = dgpu.Context([d])\npid = os.fork()\n"
                               "if pid == 0:\n    try:\n        c.synchronize()\n    except dgpu.Forked:\n        os._exit(7)\n    os._exit(1)\n"
                               "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n")
        self.assertEqual(done.stdout.strip(), "7", done.stderr)


if __name__ == "__main__":
    unittest.main()
