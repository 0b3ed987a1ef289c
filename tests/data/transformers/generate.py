#!/usr/bin/env python3
"""Writes rope.json, operators.json and defaults.json: what Hugging Face transformers and torch compute on the cpu.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers==5.24.0 && /tmp/venv/bin/python generate.py

rope.json       frequencies and attention factor of modeling_rope_utils for configs in the old and the new style
operators.json  cases in the format of ../ops/references.json: expert routers, activations, logits warpers
defaults.json   what the config classes of the families fill in for a missing key
"""
import itertools
import json
import math
import os

import torch
import transformers
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HashRouter, DeepseekV4TopKRouter
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeRotaryEmbedding
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

os.chdir(os.path.dirname(os.path.abspath(__file__)))
torch.set_num_threads(1)
SOURCE = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, cpu"


def write(name, document):
    with open(name, "w") as f:
        f.write(json.dumps(document, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")
    print(name, os.path.getsize(name), "bytes")


def shortest(t):
    """f32 numbers with the 9 digits that bring them back."""
    return [float(f"{v:.9g}") for v in t.to(torch.float64).flatten().tolist()]


# ---- Rope ----------------------------------------------------------------------------------------------------------
rope = []


def rope_case(style, head_dim, theta, max_position, lengths=(), **scaling):
    """One config. style "old": rope_theta and rope_scaling with `type`; "new": all in rope_parameters."""
    kind, partial = scaling["rope_type"], scaling.get("partial_rotary_factor", 1.0)
    if style == "new":
        part = {"rope_parameters": dict(scaling, rope_theta=theta)}
    else:
        old = {"type" if k == "rope_type" else k: v for k, v in scaling.items() if k != "partial_rotary_factor"}
        part = {"rope_theta": theta, "rope_scaling": None if kind == "default" else old}
        if partial != 1.0: part["partial_rotary_factor"] = partial
    part.update(head_dim=head_dim, max_position_embeddings=max_position)
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, **json.loads(json.dumps(part)))
    if kind == "default":
        assert config.rope_parameters["rope_type"] == "default"
        freqs, scale = Glm4MoeRotaryEmbedding.compute_default_rope_parameters(config)
    elif kind == "dynamic" and partial == 1.0:
        rows = []
        for n in lengths:  # as the model's own forward moves them
            module = LlamaRotaryEmbedding(config)
            module(torch.zeros(1), torch.arange(n)[None])
            rows.append(module.inv_freq)
        freqs, scale = torch.stack(rows), module.attention_scaling
    elif kind == "dynamic":
        rows, scale = zip(*(ROPE_INIT_FUNCTIONS[kind](config, seq_len=torch.tensor(n)) for n in lengths))
        freqs, scale = torch.stack(rows), scale[0]
    else:
        freqs, scale = ROPE_INIT_FUNCTIONS[kind](config)
    dim = int(head_dim * partial)
    assert freqs.dtype == torch.float32 and freqs.shape[-1] == dim // 2
    names = {"original_max_position_embeddings": "original_max_position"}
    attrs = {names.get(k, k): v for k, v in scaling.items() if k not in ("rope_type", "partial_rotary_factor")}
    attrs.update(type=kind, dim=dim, theta=theta)
    if kind == "dynamic": attrs["max_position"] = max_position
    if kind in ("yarn", "llama3"): attrs.setdefault("original_max_position", max_position)
    rope.append({"name": f"{kind} {len(rope)} {style}", "config": part, "attrs": attrs, "lengths": list(lengths),
                 "freqs": shortest(freqs), "scale": scale})


styles = itertools.cycle(("new", "old"))
for head_dim, theta in ((8, 10000.0), (64, 500000.0), (128, 1e6), (80, 5e6), (16, 1234.5)):
    rope_case(next(styles), head_dim, theta, 2048, rope_type="default")
for partial, head_dim in ((0.25, 64), (0.5, 128), (0.4, 80), (1.0, 16)):
    rope_case("new", head_dim, 10000.0, 2048, rope_type="default", partial_rotary_factor=partial)
    rope_case("old", head_dim, 10000.0, 2048, rope_type="linear", factor=3.0, partial_rotary_factor=partial)
    rope_case("new", head_dim, 10000.0, 2048, (10, 2049, 9000), rope_type="dynamic", factor=4.0, partial_rotary_factor=partial)
    rope_case("new", head_dim, 10000.0, 32768, rope_type="yarn", factor=4.0, original_max_position_embeddings=4096,
              partial_rotary_factor=partial)
    rope_case("new", head_dim, 10000.0, 32768, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=4096, partial_rotary_factor=partial)
for factor in (1.0, 2.0, 2.5, 7.0, 16.0):
    rope_case(next(styles), 32, 10000.0, 2048, rope_type="linear", factor=factor)
for factor, theta, most, head_dim in ((2.0, 10000.0, 128, 64), (1.0, 10000.0, 512, 16), (8.0, 500000.0, 100, 32), (2.7, 1e6, 4096, 128),
                                      (4.0, 10000.0, 16, 4)):
    lengths = sorted({1, most - 1, most, most + 1, 2 * most, 3 * most + 7, 50 * most + 3})
    rope_case(next(styles), head_dim, theta, most, lengths, rope_type="dynamic", factor=factor)
for factor, low, high, original, theta in ((8.0, 1.0, 4.0, 8192, 500000.0), (32.0, 1.0, 4.0, 8192, 500000.0), (2.0, 1.0, 4.0, 64, 10000.0),
                                           (8.0, 0.5, 8.0, 512, 10000.0), (3.5, 2.0, 2.5, 1000, 1e6), (16.0, 1.0, 32.0, 131072, 1e7)):
    rope_case(next(styles), 64, theta, original * 4, rope_type="llama3", factor=factor, low_freq_factor=low, high_freq_factor=high,
              original_max_position_embeddings=original)
yarn = dict(rope_type="yarn", factor=40.0, original_max_position_embeddings=4096)
for more in ({}, {"truncate": False}, {"mscale": 0.707, "mscale_all_dim": 1.0}, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 0.707},
             {"mscale_all_dim": 0.8}, {"attention_factor": 1.5}, {"attention_factor": 1.0, "mscale": 0.7, "mscale_all_dim": 0.3},
             {"beta_fast": 16.0, "beta_slow": 2.0}, {"beta_fast": 64, "beta_slow": 0.5, "truncate": False}, {"beta_fast": 3, "beta_slow": 3},
             {"beta_fast": 1.0, "beta_slow": 32.0}, {"factor": 1.0}, {"factor": 1.5, "truncate": True}, {"factor": 32.0, "truncate": False},
             {"original_max_position_embeddings": 32}, {"original_max_position_embeddings": 4}, {"original_max_position_embeddings": 10**6}):
    rope_case(next(styles), 64, 10000.0, 163840, **dict(yarn, **more))
rope_case("new", 64, 150000.0, 131072, rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
          original_max_position_embeddings=4096)  # gpt-oss
for head_dim, theta in ((8, 10000.0), (128, 1e6)):
    rope_case(next(styles), head_dim, theta, 40960, **dict(yarn, factor=4.0, original_max_position_embeddings=32768))
rope_case("old", 64, 10000.0, 2048, rope_type="yarn", factor=4.0)  # the original length is missing: the longest counts
write("rope.json", {"source": SOURCE + ": modeling_rope_utils, float32", "cases": rope})

# ---- Operators -----------------------------------------------------------------------------------------------------
torch.manual_seed(20250902)
cases = []


def tensor(t):
    t = torch.as_tensor(t)
    kind = {torch.float64: "f64", torch.float32: "f64", torch.int32: "i32", torch.int64: "i64"}[t.dtype]
    data = [float(f"{v:.16g}") for v in t.flatten().tolist()] if kind == "f64" else t.flatten().tolist()
    return {"dtype": kind, "shape": list(t.shape), "data": data}


def case(name, op, attrs, inputs, outputs, tolerance):
    cases.append({"name": name, "op": op, "source": SOURCE, "attrs": attrs, "tolerance": tolerance,
                  "inputs": {k: tensor(v) for k, v in inputs.items()}, "outputs": {k: tensor(v) for k, v in outputs.items()}})


# Activations in f64, under the names that configs use.
x = torch.round(torch.randn(41, dtype=torch.float64) * 4000) / 1000
x[:4] = torch.tensor([0.0, -30.0, 30.0, 1e-3])
for name, fn in (("gelu", "gelu_erf"), ("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh"), ("silu", "silu"), ("swish", "silu"),
                 ("relu", "relu"), ("sigmoid", "sigmoid"), ("tanh", "tanh")):
    case(f"ACT2FN[{name}]", "unary", {"fn": fn}, {"x": x}, {"out": ACT2FN[name](x)}, 1e-13)

# Routers. Their weight is the unit matrix, so that the hidden states are the logits; their arithmetic is f32: a relative
# error of some units of 2^-24 in scores of at most one, times the scale.
T, E, K = 12, 8, 3
logits = torch.round(torch.randn(T, E) * 1500) / 1000
bias = torch.round(torch.randn(E) * 500) / 1000


class Config:
    num_experts_per_tok, hidden_size, vocab_size = K, E, 16
    num_experts = num_local_experts = n_routed_experts = E
    norm_topk_prob, routed_scaling_factor, n_group, topk_group = True, 2.5, 4, 2
    topk_method, scoring_func = "group_limited_greedy", "sqrtsoftplus"

    def __init__(self, **changes):
        for k, v in changes.items(): setattr(self, k, v)


def router_case(name, cls, attrs, config=None, selection=None, with_bias=False, hash_ids=None):
    """selection(logits): what experts are chosen by, to bring unsorted choices into our order (largest first)."""
    module = cls(config or Config())
    with torch.no_grad():
        module.weight.copy_(torch.eye(E))
        if with_bias: module.e_score_correction_bias.copy_(bias)
        if getattr(module, "bias", None) is not None: module.bias.zero_()
        inputs, more = {"logits": logits}, ()
        if with_bias: inputs["bias"] = bias
        if hash_ids is not None:
            module.tid2eid.copy_(hash_ids)
            tokens = torch.arange(T) % 16
            more, inputs["ids"] = (tokens,), hash_ids[tokens].to(torch.int32)
        _, weights, indices = module(logits, *more)
    if hash_ids is None:
        chosen = (selection or (lambda v: v))(logits).gather(1, indices)
        order = chosen.argsort(dim=-1, descending=True)
        weights, indices = weights.gather(1, order), indices.gather(1, order)
    case(f"{cls.__name__} {name}", "moe_route", dict({"top_k": K}, **attrs), inputs,
         {"weights": weights, "indices": indices.to(torch.int32)}, 1e-6)


after = {"order": "score_then_select"}
softmax = dict(after, scoring="softmax")
router_case("", MixtralTopKRouter, dict(softmax, renormalise=True))
for norm in (True, False):
    router_case(f"norm_topk_prob={norm}", Qwen3MoeTopKRouter, dict(softmax, renormalise=norm), Config(norm_topk_prob=norm))
router_case("", GptOssTopKRouter, {"scoring": "softmax", "order": "select_then_score", "renormalise": False})
grouped = {"groups": 4, "group_top_k": 2}
for norm in (True, False):
    router_case(f"norm_topk_prob={norm}", DeepseekV3TopkRouter,
                dict(after, **grouped, scoring="sigmoid", renormalise=norm, bias_on="score", group_score="top2_sum", masked_fill="neg_inf",
                     renorm_eps=1e-20, scale=2.5), Config(norm_topk_prob=norm), lambda v: v.sigmoid() + bias, with_bias=True)
router_case("one group", DeepseekV3TopkRouter,
            dict(after, scoring="sigmoid", renormalise=True, bias_on="score", renorm_eps=1e-20, scale=1.0),
            Config(n_group=1, topk_group=1, routed_scaling_factor=1.0), lambda v: v.sigmoid() + bias, with_bias=True)
router_case("group_limited_greedy", DeepseekV2TopkRouter,
            dict(softmax, **grouped, renormalise=False, group_score="max", masked_fill="zero", scale=16.0),
            Config(norm_topk_prob=False, routed_scaling_factor=16.0), lambda v: v.softmax(-1))
router_case("greedy", DeepseekV2TopkRouter, dict(softmax, renormalise=False, scale=16.0),
            Config(norm_topk_prob=False, routed_scaling_factor=16.0, topk_method="greedy"), lambda v: v.softmax(-1))
root = dict(after, scoring="sqrt_softplus", renormalise=True, renorm_eps=1e-20, scale=2.5)
router_case("", DeepseekV4TopKRouter, dict(root, bias_on="score"), None, lambda v: torch.nn.functional.softplus(v).sqrt() + bias,
            with_bias=True)
router_case("", DeepseekV4HashRouter, root, hash_ids=torch.stack([torch.randperm(E)[:K] for _ in range(16)]))


# Sampling: the warpers in the order of GenerationMixin._get_logits_processor (temperature, top-k, top-p) say which tokens
# stay and with what probability; the token is the one at the random number in the kept tokens sorted by probability.
def philox(seed, position):
    """Philox4x32-10 in a second hand, checked against Random123's known answers below."""
    c, k, M = [position & 0xFFFFFFFF, position >> 32, 0, 0], [seed & 0xFFFFFFFF, seed >> 32], 0xFFFFFFFF
    return philox_block(c, k)[0] / 2.0**32


def philox_block(c, k):
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


assert philox_block([0, 0, 0, 0], [0, 0])[0] == 0x6627E8D5
assert philox_block([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0])[0] == 0xD16CFE09

V, B = 12, 160
vocab = torch.round(torch.randn(1, V, dtype=torch.float64) * 2000) / 1000
rows = {"logits": [], "temperature": [], "top_k": [], "top_p": [], "seeds": [], "positions": [], "out": []}
grid = itertools.cycle(itertools.product((1.0, 0.5, 2.0), (0, 1, 3, 7, 20), (0.0, 1.0, 0.25, 0.5, 0.75, 0.875)))
position = 0
while len(rows["out"]) < B:
    temperature, top_k, top_p = next(grid)
    position += 1
    scores = vocab.roll(position, 1)
    if temperature != 1.0: scores = TemperatureLogitsWarper(temperature)(None, scores)
    if top_k: scores = TopKLogitsWarper(top_k)(None, scores)
    if 0 < top_p < 1: scores = TopPLogitsWarper(top_p)(None, scores)
    p, order = scores.softmax(-1)[0].sort(descending=True)
    ends, u = p.cumsum(0), philox(7, position)
    # Rounding must not decide: neither at the random number nor at top_p's edge (of the tokens that top_k leaves).
    before = TopKLogitsWarper(top_k)(None, vocab.roll(position, 1) / temperature) if top_k else vocab.roll(position, 1) / temperature
    edge = (before.softmax(-1).sort(descending=True)[0].cumsum(-1) - top_p).abs().min()
    if (ends - u).abs().min() < 1e-5 or (0 < top_p < 1 and edge < 1e-5): continue
    for key, value in (("logits", vocab.roll(position, 1)[0]), ("temperature", temperature), ("top_k", top_k), ("top_p", top_p),
                       ("seeds", 7), ("positions", position), ("out", order[(ends <= u).sum()].item())):
        rows[key].append(value)
case("temperature, top_k, top_p", "sample", {},
     {"logits": torch.stack(rows["logits"]), "temperature": torch.tensor(rows["temperature"], dtype=torch.float64),
      "top_k": torch.tensor(rows["top_k"], dtype=torch.int32), "top_p": torch.tensor(rows["top_p"], dtype=torch.float64),
      "seeds": torch.tensor(rows["seeds"]), "positions": torch.tensor(rows["positions"])},
     {"out": torch.tensor(rows["out"], dtype=torch.int32)}, 0)
with open("operators.json", "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
print("operators.json", os.path.getsize("operators.json"), "bytes,", len(cases), "cases")

# ---- Defaults ------------------------------------------------------------------------------------------------------
# Keys that the classes fill in and that change a result. num_experts is how published Qwen3-MoE configs spell it.
KEYS = ("num_key_value_heads head_dim hidden_act max_position_embeddings rms_norm_eps attention_bias mlp_bias tie_word_embeddings "
        "rope_parameters use_sliding_window sliding_window max_window_layers decoder_sparse_step moe_intermediate_size "
        "num_experts_per_tok num_local_experts norm_topk_prob mlp_only_layers").split()
families = {}
for cls in (LlamaConfig, transformers.MistralConfig, transformers.MixtralConfig, transformers.Qwen2Config, transformers.Qwen3Config,
            transformers.Qwen3MoeConfig):
    small = cls(hidden_size=512, num_attention_heads=32, num_hidden_layers=2)
    values = {k: v for k, v in small.to_dict().items() if k in KEYS}
    if "use_sliding_window" in values:  # the class forgets the default size while the switch is off
        values["sliding_window"] = cls(hidden_size=512, num_attention_heads=32, num_hidden_layers=2, use_sliding_window=True).sliding_window
    families[cls.model_type] = values
write("defaults.json", {"source": SOURCE + ": config classes with hidden_size 512, num_attention_heads 32", "families": families})
