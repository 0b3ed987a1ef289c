"""libdgpu for Python.

    import dgpu
    device = dgpu.devices()[0]
    context = dgpu.Context([device])
    stream = context.stream(device)

Every call releases the GIL. Failures raise `Error`, or the subclass of the status: `InvalidArgument`, `OutOfMemory`,
`StreamFailed` and so on, with `status`, `name`, `object` (the argument or field at fault), `function`, `op` and
`backend`. Objects may be used from any thread and closed in any order; `close()` destroys the handle now, and leaving a
`with` block does so, too. Sizes are bytes, times are seconds, shapes are elements.
"""

import atexit
import ctypes
import json
import operator
import os
import struct
import threading

from . import lowlevel as _n

__all__ = ["Error", "Device", "Context", "Memory", "Stream", "Event", "Op", "Plan", "Kernel", "Model", "Session",
           "Sequence", "devices", "ops", "op_schema", "config", "set_config", "version", "init", "shutdown"]


class Error(RuntimeError):
    """A failed call. `status` is the numeric code, `name` its name without prefix, as in "OUT_OF_MEMORY"."""

    def __init__(self, status, message, object="", function="", op="", backend=""):
        super().__init__(message)
        self.status = status
        self.name = _NAMES.get(status, "UNKNOWN")
        self.object, self.function, self.op, self.backend = object, function, op, backend

    def __str__(self):
        return f"{super().__str__()} ({self.name})"


_NAMES = {}
_CLASSES = {}


def _make_errors():
    for row in _n.statuses():
        name, value, _ = row.split()
        _NAMES[int(value)] = name
        if int(value) == 0:
            continue
        title = "".join(word.capitalize() for word in name.split("_"))
        bases = (Error, TimeoutError) if name == "TIMEOUT" else (Error, MemoryError) if name.startswith("OUT_OF") else (Error,)
        cls = type(title, bases, {"__doc__": f"DGPU_STATUS_{name}", "__module__": __name__})
        _CLASSES[int(value)] = cls
        globals()[title] = cls
        __all__.append(title)


_make_errors()
_n.set_error_factory(lambda status, *rest: _CLASSES.get(status, Error)(status, *rest))

_FOREVER = (1 << 64) - 1


def _ns(seconds):
    """Nanoseconds of a timeout in seconds; None waits without limit."""
    if seconds is None or seconds == float("inf"):
        return _FOREVER
    if not seconds >= 0:
        raise ValueError(f"timeout is {seconds}, must be at least 0, in seconds")
    return min(int(seconds * 1e9), _FOREVER - 1)


def _whole(value, what):
    """An integer; numpy integers pass, numbers that would be cut and texts do not."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, not {value!r}") from None


def _unsigned(value, what, bits=64):
    value = _whole(value, what)
    if not 0 <= value < 1 << bits:
        raise OverflowError(f"{what} is {value}, must be from 0 to {(1 << bits) - 1}")
    return value


def _tokens(values, what):
    values = [_whole(v, what) for v in values]
    for v in values:
        if not -(1 << 31) <= v < 1 << 31:
            raise OverflowError(f"{what} {v} does not fit 32 bits")
    return values


def _path(value):
    text = os.fsdecode(value)
    if "\0" in text:
        raise ValueError(f"the path {text!r} holds a null character")
    return text


def _native(value, kind, what):
    """The native object of one of our classes."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be a dgpu.{kind.__name__}, not {value!r}")
    return value._native


def init():
    """Initialises the library; done at import. Each call needs one shutdown()."""
    _n.init()


def shutdown():
    """Undoes one init(). The last one invalidates every object."""
    _n.shutdown()


def version():
    """Version of the loaded library, "1.0.0"."""
    return _n.version()


def config(name):
    """Effective value of a DGPU_* setting, as text."""
    return _n.config_get(name)


def set_config(name, value):
    """Sets a DGPU_* setting. Only between shutdown() and init(), or it raises InvalidState."""
    _n.config_set(name, str(value))


def ops():
    """Names of all operators."""
    return list(_n.op_names())


def op_schema(name):
    """Attributes and ports of an operator, as a dictionary."""
    return json.loads(_n.op_schema(name))


class _Closable:
    """close(), `with`, and repr for what owns a native object."""

    _native = None

    def close(self):
        """Destroys the handle now; idempotent. Later uses raise InvalidHandle."""
        if self._native is not None:
            self._native.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class Device:
    """A device of the machine. Devices belong to the library and need no close()."""

    def __init__(self, ordinal):
        self._native = _n.Device(_unsigned(ordinal, "ordinal", 32))
        self.ordinal = self._native.ordinal()
        self.name = self._native.name()
        self.uuid = self._native.uuid()
        self.backend = self._native.backend()
        self.compute_units = self._native.compute_units()
        self.memory_bytes = self._native.memory_bytes()
        self.host_accessible = self._native.host_accessible()

    def __repr__(self):
        return f"<dgpu.Device {self.ordinal} {self.name!r} {self.memory_bytes >> 20} MiB>"


def devices():
    """All devices, in the order of dgpu-smi."""
    return [Device(i) for i in range(_n.device_count())]


class Context(_Closable):
    """A set of devices that share pools and plans. Closing it invalidates everything made from it."""

    def __init__(self, devices):
        self.devices = list(devices)
        for d in self.devices:
            _native(d, Device, "each of devices")
        if not self.devices:
            raise ValueError("a context needs at least one device")
        self._native = _n.Context([d.ordinal for d in self.devices])

    def stream(self, device):
        """A new Stream on one of the devices."""
        return Stream(self, device)

    def event(self, timing=False):
        """A new Event; with timing=True it can be used in Event.elapsed()."""
        return Event(self, timing)

    def alloc(self, device, size):
        """`size` bytes of device memory, contents undefined. Raises OutOfMemory."""
        return Memory(self, device, size)

    def array(self, stream, data):
        """Device memory with a copy of a buffer (numpy array, bytes, ...). Blocks until the copy is done."""
        _native(stream, Stream, "stream")
        with memoryview(data) as view:
            memory = Memory(self, stream.device, view.nbytes)
        stream.copy_in(memory, data)
        return memory

    def synchronize(self, timeout=None):
        """Waits for everything submitted so far. Raises Timeout."""
        self._native.synchronize(_ns(timeout))


class Memory(_Closable):
    """Device memory. `address` is a device address: arithmetic is valid inside the allocation."""

    def __init__(self, context, device, size):
        self._native = _n.Memory(_native(context, Context, "context"), _native(device, Device, "device"),
                                 _unsigned(size, "size"))
        self.context, self.device = context, device
        self._closed = False

    def close(self):
        self._closed = True
        super().close()

    @property
    def address(self):
        """The device address; raises InvalidHandle after close()."""
        if self._closed:
            raise InvalidHandle(-2, "the memory was closed", "memory")  # noqa: F821, made from the status table
        return self._native.address()

    @property
    def size(self):
        """Bytes."""
        return self._native.size()

    def __len__(self):
        return self.size

    def __repr__(self):
        return f"<dgpu.Memory {self.size} bytes{', closed' if self._closed else ''}>"


def _address(memory, offset=0):
    base = memory.address if isinstance(memory, Memory) else _whole(memory, "a device address (or dgpu.Memory)")
    return _unsigned(base + _whole(offset, "offset"), "the device address")


class Pending:
    """An asynchronous copy. It keeps the buffer exported (numpy arrays and bytearrays cannot be resized meanwhile) until
    the command has retired: wait() for it, or wait for the stream."""

    def __init__(self, stream, value, view):
        self._stream, self._value, self._view = stream, value, view

    def done(self):
        """True when the copy has retired. Failures are reported by wait() and by the stream."""
        if self._view is not None and self._stream._native.retired() >= self._value:
            self._release()
        return self._view is None

    def wait(self, timeout=None):
        """Blocks until the stream has done everything submitted so far, this copy included."""
        self._stream.synchronize(timeout)

    def _release(self):
        view, self._view = self._view, None
        if view is not None:
            view.release()


class Stream(_Closable):
    """An in-order queue of commands. Submits wait while the queue is full."""

    def __init__(self, context, device):
        self._native = _n.Stream(_native(context, Context, "context"), _native(device, Device, "device"))
        self.context, self.device = context, device
        self._pending, self._lock = [], threading.Lock()

    def synchronize(self, timeout=None):
        """Waits until everything submitted has retired; raises the stream's failure, or Timeout."""
        try:
            self._native.synchronize(_ns(timeout))
        finally:
            self._collect()

    def query(self):
        """True when idle, False while work is under way; raises the stream's failure."""
        return self._native.query()

    def reset(self, timeout=None):
        """Makes a failed stream usable again."""
        self._native.reset(_ns(timeout))
        self._collect()

    def close(self):
        """Destroys the handle. Queued work still runs, so this waits for copies that use Python buffers."""
        with self._lock:
            pending = bool(self._pending)
        if pending and not self._native.closed():
            try:
                self._native.synchronize(_FOREVER)
            except Error:
                pass
            self._collect()
        super().close()

    def __del__(self):
        try:
            self.close()
        except Exception:  # interpreter shutdown
            pass

    def _collect(self):
        with self._lock:
            self._pending = [p for p in self._pending if not p.done()]

    def _submit(self, submit, view):
        with self._lock:
            submit()
            pending = Pending(self, self._native.value(), view)
            self._pending.append(pending)
        return pending

    @staticmethod
    def _view(data, writable):
        view = memoryview(data)
        if not view.c_contiguous:
            view.release()
            raise BufferError("the buffer is not C-contiguous; copy it first, for example with numpy.ascontiguousarray")
        if "O" in view.format:
            view.release()
            raise BufferError("the buffer holds Python objects, whose addresses mean nothing to a device")
        if writable and view.readonly:
            view.release()
            raise BufferError("the buffer is read-only")
        return view

    def copy_in(self, dst, data, offset=0, wait=True):
        """Copies a host buffer to device memory `dst` (Memory or address) at byte `offset`. With wait=False returns a
        Pending at once."""
        view = self._view(data, False)
        pending = self._submit(lambda: self._native.copy_from(_address(dst, offset), view), view)
        if wait:
            pending.wait()
        return pending

    def copy_out(self, data, src, offset=0, wait=True):
        """Copies device memory `src` at byte `offset` into a writable host buffer, as many bytes as that has."""
        view = self._view(data, True)
        pending = self._submit(lambda: self._native.copy_to(view, _address(src, offset)), view)
        if wait:
            pending.wait()
        return pending

    def copy(self, dst, src, size):
        """Copies between device addresses of the context."""
        self._native.copy(_address(dst), _address(src), _unsigned(size, "size"))

    def fill(self, dst, pattern, pattern_size, size):
        """Repeats a pattern of 1, 2, 4 or 8 bytes."""
        self._native.fill(_address(dst), _unsigned(pattern, "pattern"), _unsigned(pattern_size, "pattern_size", 32),
                          _unsigned(size, "size"))


class Event(_Closable):
    """A point in a stream."""

    def __init__(self, context, timing=False):
        self._native = _n.Event(_native(context, Context, "context"), bool(timing))

    def record(self, stream):
        """Stands for everything submitted to `stream` so far."""
        self._native.record(_native(stream, Stream, "stream"))

    def synchronize(self, timeout=None):
        """Waits for it; raises the failure, or Timeout."""
        self._native.synchronize(_ns(timeout))

    def query(self):
        """True when reached."""
        return self._native.query()

    def wait(self, stream):
        """Commands submitted to `stream` later start when this event is reached."""
        self._native.wait(_native(stream, Stream, "stream"))

    def elapsed(self, start):
        """Seconds from `start` to this event, on the device's clock. Both need timing=True."""
        return self._native.elapsed_ns(_native(start, Event, "start")) * 1e-9


class Op(_Closable):
    """An operator description. Attributes may be given as keywords: Op("rms_norm", eps=1e-5)."""

    def __init__(self, name, **attributes):
        self._native = _n.Op(name)
        self._types = {a["name"]: a["type"] for a in op_schema(name)["attributes"]}
        for key, value in attributes.items():
            self.set(key, value)

    def set(self, attribute, value):
        """Sets an attribute; the schema decides how the value is passed."""
        n, kind = self._native, self._types.get(attribute)
        if kind == "float" or (kind is None and isinstance(value, float)):
            n.set_float(attribute, float(value))
        elif kind == "bool" or (kind is None and isinstance(value, bool)):
            n.set_bool(attribute, bool(value))
        elif kind == "string" or (kind is None and isinstance(value, str)):
            n.set_string(attribute, value)
        elif kind == "ints":
            n.set_ints(attribute, [int(v) for v in value])
        elif kind == "floats":
            n.set_floats(attribute, [float(v) for v in value])
        else:
            n.set_int(attribute, int(value))
        return self

    def tensor(self, port, dtype, shape):
        """Binds a row-major tensor to a port."""
        self._native.set_tensor(port, dtype, [int(d) for d in shape])
        return self

    def infer(self, port):
        """(dtype, shape) that an output must have."""
        t = self._native.infer(port)
        return t.dtype, list(t.shape)

    def plan(self, context, device):
        """A Plan of this operator on a device."""
        return Plan(context, device, self)


class Plan(_Closable):
    """How an operator runs on a device: `mode` is "native", "composed" or "reference"."""

    def __init__(self, context, device, op):
        self._native = _n.Plan(_native(context, Context, "context"), _native(device, Device, "device"),
                               _native(op, Op, "op"))
        self.mode = self._native.mode()
        self.algorithm = self._native.algorithm()
        self.reason = self._native.reason()
        self.workspace_bytes = self._native.workspace_bytes()
        self.ports = list(self._native.ports())

    def execute(self, stream, tensors, symbols=(), workspace=0):
        """Submits one execution. `tensors` maps each bound port to Memory or an address."""
        missing = [p for p in self.ports if p not in tensors]
        extra = [p for p in tensors if p not in self.ports]
        if missing or extra:
            raise ValueError(f"ports missing: {missing}, not bound: {extra}")
        self._native.execute(stream._native, [_address(tensors[p]) for p in self.ports], [int(s) for s in symbols],
                             _address(workspace))


_ARG_TYPES = {1: ctypes.c_int32, 2: ctypes.c_uint32, 3: ctypes.c_int64, 4: ctypes.c_uint64, 5: ctypes.c_float,
              6: ctypes.c_double, 7: ctypes.c_void_p}
_PARAMS = {"gx": ctypes.c_uint64, "gy": ctypes.c_uint64, "gz": ctypes.c_uint64, "i32": ctypes.c_int32,
           "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64, "f32": ctypes.c_float,
           "f64": ctypes.c_double, "ptr": ctypes.c_void_p}
_kept = []  # callbacks of kernels: their code must outlive every launch, which only the process's end proves


class _Exit:
    """Ends the library before the interpreter, into which no thread may call when it is gone. Grid points that have not
    begun return at once; one that never returns holds the exit up for five seconds. The thread waits from the first
    callback on, as none can be started at exit."""

    def __init__(self):
        self.begun = False
        self._event = threading.Event()
        self._thread = None
        self._lock = threading.Lock()

    def arm(self):
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dgpu-exit", daemon=True)
                self._thread.start()
                atexit.register(self._finish)

    def _run(self):
        self._event.wait()
        try:
            _n.shutdown()
        except Error:  # it was shut down already
            pass

    def _finish(self):
        self.begun = True
        self._event.set()
        self._thread.join(5)


_exit = _Exit()


class Kernel(_Closable):
    """A Python callable, or the address of a C function, launched over a grid.

    `signature` lists the parameters in order: gx gy gz (the grid point), i32 u32 i64 u64 f32 f64, ptr (a device address
    at launch, the host pointer as an integer in the function). A Python callable runs on a thread of the library, one
    grid point after the other; an exception in it is printed and does not fail the command. At the interpreter's exit
    the library is shut down when the grid point that runs has returned (after five seconds at most); the rest is left.
    """

    def __init__(self, context, function, signature, name=None):
        params = [p.strip() for p in signature.split(",") if p.strip()]
        if callable(function):
            unknown = [p for p in params if p not in _PARAMS]
            if unknown:
                raise ValueError(f"unknown parameter types {unknown} in signature {signature!r}")
            _exit.arm()
            self._callback = ctypes.CFUNCTYPE(None, *[_PARAMS[p] for p in params])(
                lambda *args: None if _exit.begun else function(*args))
            _kept.append(self._callback)
            address, blocking = ctypes.cast(self._callback, ctypes.c_void_p).value, True
        else:
            address, blocking = int(function), False
        self._native = _n.Kernel(context._native, name or getattr(function, "__name__", "kernel"), address, signature, blocking)
        self._types = list(self._native.arg_types())

    def launch(self, stream, grid, *args):
        """Launches over `grid` (an integer or up to three). Arguments in the signature's order, grid left out."""
        if len(args) != len(self._types):
            raise TypeError(f"the kernel takes {len(self._types)} arguments, {len(args)} were given")
        extents = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
        if not 1 <= len(extents) <= 3:
            raise ValueError(f"the grid has 1 to 3 extents, not {len(extents)}")
        x, y, z = (tuple(_unsigned(g, "an extent of the grid") for g in extents) + (1, 1))[:3]
        self._native.launch(_native(stream, Stream, "stream"), x, y, z, self._types, [_bits(t, a) for t, a in zip(self._types, args)])


def _bits(kind, value):
    if kind == 7:
        return 0 if value is None else _address(value)
    if kind == 5:
        return struct.unpack("<I", struct.pack("<f", value))[0]
    if kind == 6:
        return struct.unpack("<Q", struct.pack("<d", value))[0]
    low, high = {1: (-(1 << 31), (1 << 31) - 1), 2: (0, (1 << 32) - 1), 3: (-(1 << 63), (1 << 63) - 1), 4: (0, (1 << 64) - 1)}[kind]
    value = int(value)
    if not low <= value <= high:
        raise OverflowError(f"{value} does not fit the parameter's type")
    return value & ((1 << 64) - 1)


class Model(_Closable):
    """A model directory: config.json and safetensors. `config_only=True` needs no weights."""

    def __init__(self, directory, templates=(), config_only=False):
        single = isinstance(templates, (str, bytes, os.PathLike))
        path = ":".join(_path(t) for t in ([templates] if single else templates))
        self._native = _n.Model(_path(directory), path, bool(config_only))
        self.family = self._native.family()
        self.parameters = self._native.parameters()
        self.layers = self._native.layers()
        self.vocab_size = self._native.vocab_size()
        self.hidden_size = self._native.hidden_size()

    @property
    def loaded(self):
        """True after load()."""
        return self._native.loaded()

    def load(self, context, device, dtype="f32"):
        """Brings the weights to the device; `dtype` is the compute type: f32, bf16 or f16. Blocks."""
        self._native.load(_native(context, Context, "context"), _native(device, Device, "device"), dtype)
        return self

    def inspect(self):
        """The Day-0 inspect document."""
        return json.loads(self._native.inspect())

    def audit(self):
        """The Day-0 audit document."""
        return json.loads(self._native.audit())

    def compare(self, context, device, baseline, dtype="f32"):
        """The Day-0 compare document against a baseline file; the model must be loaded to `device` for `dtype`. Blocks."""
        return json.loads(self._native.compare(_native(context, Context, "context"), _native(device, Device, "device"),
                                               dtype, _path(baseline)))

    def session(self, max_sequences=1, max_tokens=0, max_batch_tokens=0, max_logit_rows=0, taps=()):
        """A Session; 0 takes the library's defaults."""
        return Session(self, max_sequences, max_tokens, max_batch_tokens, max_logit_rows, taps)


class Session(_Closable):
    """Plans, limits and caches of a loaded model."""

    def __init__(self, model, max_sequences, max_tokens, max_batch_tokens, max_logit_rows, taps):
        names = taps if isinstance(taps, str) else ",".join(taps)
        limits = {"max_sequences": max_sequences, "max_tokens": max_tokens, "max_batch_tokens": max_batch_tokens,
                  "max_logit_rows": max_logit_rows}
        self._native = _n.Session(_native(model, Model, "model"), *(_unsigned(v, k, 32) for k, v in limits.items()), names)
        self.model = model

    def sequence(self):
        """A new, empty Sequence."""
        return Sequence(self)

    def step(self, stream, sequence, tokens):
        """Extends a sequence by tokens. Asynchronous; logits() belongs to the last step."""
        _n.step(self._native, _native(stream, Stream, "stream"), _native(sequence, Sequence, "sequence"),
                _tokens(tokens, "token"))

    def logits(self):
        """(dtype, shape, address) of the last step's logits on the device."""
        t = self._native.logits()
        return t.dtype, list(t.shape), t.address

    def generate(self, stream, prompt, max_new_tokens=16, stop=(), temperature=0.0, top_k=0, top_p=0.0, seed=0,
                 sequence=None):
        """Token ids that follow the prompt; greedy with temperature 0. Uses a sequence of its own unless one is given.
        Blocks."""
        own = sequence is None
        sequence = self.sequence() if own else sequence
        try:
            return list(_n.generate(self._native, _native(stream, Stream, "stream"),
                                    _native(sequence, Sequence, "sequence"), _tokens(prompt, "token"),
                                    _unsigned(max_new_tokens, "max_new_tokens", 32), _tokens(stop, "stop id"),
                                    float(temperature), _unsigned(top_k, "top_k", 32), float(top_p),
                                    _unsigned(seed, "seed")))
        finally:
            if own:
                sequence.close()


class Sequence(_Closable):
    """What a token history left behind in a session's caches."""

    def __init__(self, session):
        self._native = _n.Sequence(_native(session, Session, "session"))

    def __len__(self):
        return self._native.length()

    def truncate(self, length):
        """Forgets tokens from `length` on."""
        self._native.truncate(_unsigned(length, "length"))

    def describe(self):
        """States by kind, with bytes."""
        return json.loads(self._native.describe())


init()
