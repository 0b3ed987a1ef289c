#!/usr/bin/env python3
"""Writes references.json: operator cases with results of other implementations.

Needs numpy, onnx (its ReferenceEvaluator computes the ONNX operators) and scipy, in an environment of its own:
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install numpy onnx scipy && /tmp/venv/bin/python generate.py
Each case names its source. Sources: "onnx OP-OPSET" is onnx.reference; "scipy F" a function of scipy; "numpy" an explicit
loop below, written from the published model code that the case names.
"""
import json, math, os
import numpy as np
import onnx
from onnx import helper, TensorProto
from onnx.reference import ReferenceEvaluator
import scipy.special, scipy.stats

rng = np.random.default_rng(20250901)
cases = []
DTYPE = {np.dtype("float64"): "f64", np.dtype("int32"): "i32", np.dtype("int64"): "i64"}


def tensor(a):
    a = np.asarray(a)
    data = [float(f"{v:.13g}") if a.dtype.kind == "f" else int(v) for v in a.reshape(-1)]
    data = ["inf" if v == math.inf else "-inf" if v == -math.inf else "nan" if v != v else v for v in data]
    return {"dtype": DTYPE[a.dtype], "shape": list(a.shape), "data": data}


def case(name, op, source, attrs, inputs, outputs, tolerance=1e-11):
    cases.append({"name": name, "op": op, "source": source, "attrs": attrs, "tolerance": tolerance,
                  "inputs": {k: tensor(v) for k, v in inputs.items()},
                  "outputs": {k: tensor(v) for k, v in outputs.items()}})


def normal(*shape, scale=1.0):
    """Numbers that have a short decimal form."""
    return np.round(rng.normal(size=shape) * scale, 3)


def run_onnx(op, opset, inputs, outputs=1, **attrs):
    """inputs: list of arrays or None."""
    names = [f"i{n}" if a is not None else "" for n, a in enumerate(inputs)]
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in zip(names, inputs) if a is not None]
    outs = [f"o{n}" for n in range(outputs)]
    node = helper.make_node(op, names, outs, **attrs)
    graph = helper.make_graph([node], "g", infos, [helper.make_value_info(o, onnx.TypeProto()) for o in outs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model).run(None, {n: a for n, a in zip(names, inputs) if a is not None})


# ---- elementwise, norms, softmax -----------------------------------------------------------------------------------
x = normal(3, 7, scale=3)
for fn, onnx_op, attrs in [("gelu_erf", "Gelu", {}), ("gelu_tanh", "Gelu", {"approximate": "tanh"}), ("sigmoid", "Sigmoid", {}),
                           ("softplus", "Softplus", {}), ("relu", "Relu", {}), ("tanh", "Tanh", {}), ("exp", "Exp", {}),
                           ("sin", "Sin", {}), ("reciprocal", "Reciprocal", {}), ("abs", "Abs", {}), ("neg", "Neg", {})]:
    case(fn, "unary", f"onnx {onnx_op}-20", {"fn": fn}, {"x": x}, {"out": run_onnx(onnx_op, 20, [x], **attrs)[0]}, 2e-7 if "gelu" in fn else 1e-11)  # its gelu has f32 constants
case("silu", "unary", "scipy expit", {"fn": "silu"}, {"x": x}, {"out": x * scipy.special.expit(x)})
case("softmax", "softmax", "scipy softmax", {}, {"x": x}, {"out": scipy.special.softmax(x, axis=-1)})
case("softmax axis 0", "softmax", "scipy softmax", {"axis": 0}, {"x": x}, {"out": scipy.special.softmax(x, axis=0)})

w, b = normal(7), normal(7)
case("rms_norm", "rms_norm", "onnx RMSNormalization-23", {"eps": 1e-3, "weight_offset": 0.0, "cast": "after_weight"},
     {"x": x, "weight": w}, {"out": run_onnx("RMSNormalization", 23, [x, w], epsilon=1e-3)[0]}, 1e-6)
case("rms_norm offset", "rms_norm", "onnx RMSNormalization-23", {"eps": 1e-3, "weight_offset": 1.0, "cast": "before_weight"},
     {"x": x, "weight": w}, {"out": run_onnx("RMSNormalization", 23, [x, w + 1], epsilon=1e-3)[0]}, 1e-6)
case("layer_norm", "layer_norm", "onnx LayerNormalization-17", {"eps": 1e-3}, {"x": x, "weight": w, "bias": b},
     {"out": run_onnx("LayerNormalization", 17, [x, w, b], epsilon=1e-3)[0]}, 1e-6)

# ---- matmul --------------------------------------------------------------------------------------------------------
a, m = normal(2, 3, 5), normal(2, 5, 4)
bias, gate, residual = normal(4), normal(2, 3, 4), normal(2, 3, 4)
product = run_onnx("MatMul", 13, [a, m])[0]
case("matmul", "matmul", "onnx MatMul-13", {}, {"a": a, "b": m}, {"out": product})
case("matmul transposed", "matmul", "onnx MatMul-13", {"transpose_a": True, "transpose_b": True},
     {"a": a.swapaxes(1, 2), "b": m.swapaxes(1, 2)}, {"out": product})
case("matmul broadcast", "matmul", "onnx MatMul-13", {}, {"a": a, "b": m[0]}, {"out": run_onnx("MatMul", 13, [a, m[0]])[0]})
case("matmul epilogue", "matmul", "onnx MatMul-13, Gelu-20", {"activation": "gelu_tanh"},
     {"a": a, "b": m, "bias": bias, "gate": gate, "residual": residual},
     {"out": run_onnx("Gelu", 20, [product + bias], approximate="tanh")[0] * gate + residual}, 5e-7)

# ---- top_k, argmax, reduce, binary ---------------------------------------------------------------------------------
ties = np.array([[1.0, 3, 3, 2, 3, 0], [5, 5, 5, 5, 5, 5], [-1, -2, -3, -4, -5, -6]])
for largest in (True, False):
    order = np.argsort(-ties if largest else ties, axis=-1, kind="stable")[:, :4]
    case(f"top_k ties {largest}", "top_k", "numpy stable argsort", {"k": 4, "largest": largest}, {"x": ties},
         {"values": np.take_along_axis(ties, order, 1), "indices": order.astype(np.int32)})
case("argmax", "argmax", "numpy argmax", {}, {"x": ties}, {"out": np.argmax(ties, axis=-1).astype(np.int32)})
cube = normal(2, 3, 4)
for fn, f in [("sum", np.sum), ("mean", np.mean), ("max", np.max), ("min", np.min), ("sum_sq", lambda v, **k: np.sum(v * v, **k))]:
    case(f"reduce {fn}", "reduce", "numpy", {"fn": fn, "axes": [0, -1]}, {"x": cube}, {"out": f(cube, axis=(0, 2))})
    case(f"reduce {fn} keep", "reduce", "numpy", {"fn": fn, "axes": [1], "keepdims": True}, {"x": cube},
         {"out": f(cube, axis=1, keepdims=True)})
p, q = np.array([[7, -7, 7, -7]], dtype=np.int64), np.array([[2], [-2]], dtype=np.int64)
for fn, f in [("floordiv", np.floor_divide), ("mod", np.mod), ("add", np.add), ("max", np.maximum), ("mul", np.multiply)]:
    case(f"binary {fn} int", "binary", "numpy", {"fn": fn}, {"a": p, "b": q}, {"out": f(p, q)})
for fn, f in [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide), ("max", np.maximum),
              ("min", np.minimum)]:
    case(f"binary {fn}", "binary", "numpy", {"fn": fn}, {"a": cube, "b": cube[0, :, :1]}, {"out": f(cube, cube[0, :, :1])})
case("binary pow scalar", "binary", "numpy", {"fn": "pow", "scalar": 2.5}, {"a": np.abs(cube)}, {"out": np.abs(cube) ** 2.5})

# ---- rope ----------------------------------------------------------------------------------------------------------
T, heads, D, r = 5, 3, 8, 6
xr = normal(T, heads, D)
pos = np.array([0, 1, 5, 2, 100], dtype=np.int32)
freqs = (1.0 / 10000.0 ** (np.arange(0, r, 2) / r)).astype(np.float32).astype(np.float64)
for pairing, interleaved in (("half", 0), ("interleave", 1)):
    ang = np.arange(101)[:, None] * freqs
    y = run_onnx("RotaryEmbedding", 23, [xr[None].swapaxes(1, 2), np.cos(ang), np.sin(ang), pos[None].astype(np.int64)],
                 interleaved=interleaved, rotary_embedding_dim=r)[0].swapaxes(1, 2)[0]
    case(f"rope {pairing}", "rope", "onnx RotaryEmbedding-23", {"pairing": pairing, "at": "head", "angle": "f64"},
         {"x": xr, "positions": pos, "freqs": freqs}, {"out": y})

# Frequencies: float32 as in transformers/modeling_rope_utils.py, written with numpy.
f32 = np.float32


def inv(base, dim):
    return f32(1) / np.power(f32(base), np.arange(0, dim, 2).astype(f32) / f32(dim), dtype=f32)


def freq_case(name, attrs, freqs, scale, inputs=None):
    case("rope_freqs " + name, "rope_freqs", "numpy f32, transformers modeling_rope_utils", attrs, inputs or {},
         {"freqs": np.asarray(freqs, dtype=np.float64), "scale": np.array([scale], dtype=np.float64)}, 2.5e-7)


dim, theta = 64, 500000.0
freq_case("default", {"type": "default", "dim": dim, "theta": theta}, inv(theta, dim), 1.0)
freq_case("linear", {"type": "linear", "dim": dim, "theta": theta, "factor": 4.0}, inv(theta, dim) / f32(4), 1.0)
rows = []
for length in (10, 128, 129, 1000):
    s = max(length, 128)
    rows.append(inv(theta * ((2.0 * s / 128) - 1.0) ** (dim / (dim - 2)), dim))
freq_case("dynamic", {"type": "dynamic", "dim": dim, "theta": theta, "factor": 2.0, "max_position": 128}, np.stack(rows), 1.0,
          {"lengths": np.array([10, 128, 129, 1000], dtype=np.int32)})
base = inv(theta, dim)
out = []
for f in base:
    wave = f32(2 * math.pi) / f
    if wave < 8192 / 4.0: out.append(f)
    elif wave > 8192 / 1.0: out.append(f / f32(8))
    else:
        smooth = (8192 / float(wave) - 1.0) / (4.0 - 1.0)
        out.append((1 - smooth) * float(f) / 8 + smooth * float(f))
freq_case("llama3", {"type": "llama3", "dim": dim, "theta": theta, "factor": 8.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position": 8192}, out, 1.0)


def yarn(dim, theta, factor, original, fast, slow, truncate):
    def where(turns): return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
    low, high = where(fast), where(slow)
    if truncate: low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    f = 1.0 / theta ** (np.arange(0, dim, 2) / dim)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    return f / factor * ramp + f * (1 - ramp)


y = {"type": "yarn", "dim": dim, "theta": 10000.0, "factor": 40.0, "original_max_position": 4096}
freq_case("yarn", y, yarn(dim, 1e4, 40.0, 4096, 32, 1, True), 0.1 * math.log(40) + 1)
freq_case("yarn deepseek", dict(y, mscale=0.707, mscale_all_dim=1.0), yarn(dim, 1e4, 40.0, 4096, 32, 1, True),
          (0.1 * 0.707 * math.log(40) + 1) / (0.1 * math.log(40) + 1))
freq_case("yarn gpt-oss", {"type": "yarn", "dim": dim, "theta": 150000.0, "factor": 32.0, "original_max_position": 4096,
                           "truncate": False}, yarn(dim, 150000.0, 32.0, 4096, 32, 1, False), 0.1 * math.log(32) + 1)

# ---- attention: ONNX, then a dense masked softmax ------------------------------------------------------------------
def paged(k, v, S, table):
    """k, v: [tokens, Hkv, D] of one sequence into pages listed in table."""
    P = 1 + max(table)
    kp, vp = normal(P, S, *k.shape[1:]), normal(P, S, *v.shape[1:])
    for j in range(len(k)):
        kp[table[j // S], j % S], vp[table[j // S], j % S] = k[j], v[j]
    return kp, vp


past, T, Hq, Hkv, D, Dv = 4, 3, 4, 2, 6, 5
k, v, q = normal(past + T, Hkv, D), normal(past + T, Hkv, Dv), normal(T, Hq, D)
kp, vp = paged(k, v, 2, [3, 0, 2, 1])
ports = {"q": q, "k0": kp, "v0": vp, "table0": np.array([[3, 0, 2, 1]], dtype=np.int32),
         "lengths0": np.array([past + T], dtype=np.int32), "offsets": np.array([0, T], dtype=np.int32),
         "positions": np.arange(past, past + T, dtype=np.int32)}
four = lambda t: t[None].swapaxes(1, 2)
for name, attrs, kw in [("causal", {}, {}), ("softcap", {"softcap": 2.0}, {"softcap": 2.0})]:
    o = run_onnx("Attention", 24, [four(q), four(k[past:]), four(v[past:]), None, four(k[:past]), four(v[:past])], 3,
                 is_causal=1, scale=0.25, **kw)[0]
    case(f"attention {name}", "attention", "onnx Attention-24", dict({"scale": 0.25, "causal": True}, **attrs), ports,
         {"out": o.swapaxes(1, 2)[0]})
bias = normal(Hq, T, past + T)
o = run_onnx("Attention", 24, [four(q), four(k), four(v), bias[None]], 1, scale=0.25)[0]
case("attention bias", "attention", "onnx Attention-24", {"scale": 0.25, "causal": False}, dict(ports, bias=bias),
     {"out": o.swapaxes(1, 2)[0]})


def dense(q, k, v, mask, scale, sinks=None):
    """mask[t, j]; k, v [n, Hkv, .]"""
    out, lse = np.zeros((len(q), q.shape[1], v.shape[2])), np.full(q.shape[:2], -np.inf)
    for t in range(len(q)):
        for h in range(q.shape[1]):
            kv = h * k.shape[1] // q.shape[1]
            s = np.where(mask[t], k[:, kv] @ q[t, h] * scale, -np.inf)
            if sinks is not None: s = np.append(s, sinks[h])
            if not np.isfinite(s).any(): continue
            lse[t, h] = scipy.special.logsumexp(s)
            out[t, h] = np.exp(s - lse[t, h])[: len(k)] @ v[:, kv]
    return out, lse


i, j = np.arange(past, past + T)[:, None], np.arange(past + T)[None]
sinks = normal(Hq)
o, lse = dense(q, k, v, (j <= i) & (j > i - 3), 0.25)
case("attention window", "attention", "numpy dense softmax, scipy logsumexp", {"scale": 0.25, "causal": True, "window": [3]},
     ports, {"out": o, "lse": lse})
o, lse = dense(q, k, v, (j <= i) & (j // 4 == i // 4), 0.25)
case("attention chunk", "attention", "numpy dense softmax, llama4 chunks", {"scale": 0.25, "causal": True, "chunk": [4]},
     ports, {"out": o, "lse": lse})
o, lse = dense(q, k, v, j <= i, 0.25, sinks)
case("attention sinks", "attention", "numpy dense softmax, gpt-oss sinks", {"scale": 0.25, "causal": True},
     dict(ports, sinks=sinks), {"out": o, "lse": lse})
# Two sources: a window of the tokens, and compressed keys that each stand for 2 tokens, as DeepSeek-V4 has them.
k1, v1 = normal(3, Hkv, D), normal(3, Hkv, Dv)
kp1, vp1 = paged(k1, v1, 3, [0])
mask = np.concatenate([(j <= i) & (j > i - 2), np.arange(3)[None] < (i + 1) // 2], axis=1)
o, lse = dense(q, np.concatenate([k, k1]), np.concatenate([v, v1]), mask, 0.25, sinks)
case("attention two sources", "attention", "numpy dense softmax, deepseek-v4 window and compressed keys",
     {"scale": 0.25, "causal": True, "sources": 2, "window": [2, 0], "every": [0, 2]},
     dict(ports, sinks=sinks, k1=kp1, v1=vp1, table1=np.array([[0]], dtype=np.int32), lengths1=np.array([3], dtype=np.int32)),
     {"out": o, "lse": lse})
pick = np.array([[0, 3, -1], [5, 1, 5], [-1, -1, -1]], dtype=np.int32)
mask = np.array([[c in row for c in range(past + T)] for row in pick])
o, lse = dense(q, k, v, mask & (j <= i), 0.25)
case("attention pick", "attention", "numpy dense softmax over a list of keys", {"scale": 0.25, "causal": True},
     dict(ports, pick0=pick), {"out": o, "lse": lse})

# ---- mixture of experts --------------------------------------------------------------------------------------------
T, E, K = 6, 8, 3
logits, ebias = normal(T, E), normal(E, scale=0.5)


def select(sel, k): return np.argsort(-sel, kind="stable")[:k]


def route_case(name, source, attrs, fn, **extra):
    w, idx = zip(*(fn(row) for row in logits))
    case("moe_route " + name, "moe_route", source, attrs, dict({"logits": logits}, **extra),
         {"weights": np.array(w), "indices": np.array(idx, dtype=np.int32)})


def mixtral(row):
    p = scipy.special.softmax(row); idx = select(p, K); w = p[idx]
    return w / w.sum(), idx


def gpt_oss(row):
    idx = select(row, K)
    return scipy.special.softmax(row[idx]), idx


def deepseek_v3(fill):
    def f(row):
        s = scipy.special.expit(row); sel = s + ebias
        groups = sel.reshape(4, 2)
        keep = select(np.sort(groups, axis=1)[:, -2:].sum(axis=1), 2)
        for g in range(4):
            if g not in keep: groups[g] = fill
        idx = select(groups.reshape(-1), K); w = s[idx]
        return w / (w.sum() + 1e-20) * 2.5, idx
    return f


def deepseek_v2(row):
    p = scipy.special.softmax(row); groups = p.copy().reshape(4, 2)
    keep = select(groups.max(axis=1), 2)
    for g in range(4):
        if g not in keep: groups[g] = 0
    idx = select(groups.reshape(-1), K)
    return p[idx] * 16, idx


route_case("mixtral", "numpy, mixtral", {"top_k": K, "scoring": "softmax", "order": "score_then_select", "renormalise": True}, mixtral)
route_case("gpt-oss", "numpy, gpt-oss", {"top_k": K, "scoring": "softmax", "order": "select_then_score", "renormalise": False}, gpt_oss)
for fill, value in (("neg_inf", -np.inf), ("zero", 0.0)):
    route_case("deepseek-v3 " + fill, "numpy, deepseek-v3", {
        "top_k": K, "scoring": "sigmoid", "order": "score_then_select", "renormalise": True, "bias_on": "score", "groups": 4,
        "group_top_k": 2, "group_score": "top2_sum", "masked_fill": fill, "renorm_eps": 1e-20, "scale": 2.5},
        deepseek_v3(value), bias=ebias)
route_case("deepseek-v2", "numpy, deepseek-v2", {
    "top_k": K, "scoring": "softmax", "order": "score_then_select", "renormalise": False, "groups": 4, "group_top_k": 2,
    "group_score": "max", "masked_fill": "zero", "scale": 16.0}, deepseek_v2)
ids = np.array([[0, 5, 2]] * T, dtype=np.int32)
s4 = np.sqrt(np.log1p(np.exp(logits)))[:, [0, 5, 2]]
case("moe_route deepseek-v4 hash", "moe_route", "numpy, deepseek-v4",
     {"top_k": K, "scoring": "sqrt_softplus", "order": "score_then_select", "renormalise": True, "scale": 1.5},
     {"logits": logits, "ids": ids}, {"weights": s4 / s4.sum(axis=1, keepdims=True) * 1.5, "indices": ids})

T, H, I, E = 4, 5, 3, 4
x, up, gate, down = normal(T, H), normal(E, I, H), normal(E, I, H), normal(E, H, I)
idx, wts = np.array([[0, 3], [2, 2], [1, -1], [3, 0]], dtype=np.int32), np.abs(normal(T, 2))


def moe(f):
    out = np.zeros((T, H))
    for t in range(T):
        for e, w in zip(idx[t], wts[t]):
            if e >= 0: out[t] += w * f(e, x[t])
    return out


silu = lambda g: g * scipy.special.expit(g)
base = {"x": x, "indices": idx, "weights": wts, "down": down}
case("moe_experts mixtral", "moe_experts", "numpy, mixtral", {"activation": "silu"}, dict(base, gate=gate, up=up),
     {"out": moe(lambda e, v: down[e] @ (silu(gate[e] @ v) * (up[e] @ v)))})
case("moe_experts relu", "moe_experts", "numpy", {"activation": "relu"}, dict(base, up=up),
     {"out": moe(lambda e, v: down[e] @ np.maximum(up[e] @ v, 0))})
packed = np.stack([gate, up], axis=2).reshape(E, 2 * I, H)
gub, db = normal(E, 2 * I), normal(E, H)


def oss(e, v):
    h = packed[e] @ v + gub[e]
    g, u = np.minimum(h[::2], 1.5), np.clip(h[1::2], -1.5, 1.5)
    return down[e] @ (g * scipy.special.expit(1.702 * g) * (u + 1)) + db[e]


case("moe_experts gpt-oss", "moe_experts", "numpy, gpt-oss",
     {"activation": "silu", "layout": "interleaved", "alpha": 1.702, "gate_max": 1.5, "up_clamp": 1.5, "up_offset": 1.0},
     dict(base, gate_up=packed, gate_up_bias=gub, down_bias=db), {"out": moe(oss)})
out = np.zeros((T, H))
for t in range(T):
    for e, w in zip(idx[t], wts[t]):
        if e >= 0: out[t] += down[e] @ (silu(gate[e] @ (w * x[t])) * (up[e] @ (w * x[t])))
case("moe_experts llama4", "moe_experts", "numpy, llama4", {"activation": "silu", "scale_input": True, "layout": "contiguous"},
     dict(base, gate_up=np.concatenate([gate, up], axis=1)), {"out": out})

os.chdir(os.path.dirname(os.path.abspath(__file__)))
with open("references.json", "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
print(len(cases), "cases,", os.path.getsize("references.json"), "bytes")
