// The flat typed program of a model: what the builder emits, passes rewrite and the session executes. It knows no
// model family: everything the session needs is here.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "dgpu/types.h"
#include "ops/op.h"

namespace dgpu::graph {

using Id = uint32_t;  // index into Program::values (or nodes, weights ... where said)
inline constexpr Id kNone = 0xffffffffu;
inline constexpr int64_t kDense = -1;  // in Value::strides

// ---- Symbols and dimensions ----------------------------------------------------------------------------------------

enum class Base : uint8_t {
  Tokens,      // T: tokens of the step
  Sequences,   // B: sequences of the step
  LogitRows,   // R: rows whose logits are wanted
  Pages,       // P of one cache: pages in its pool. Chosen once per session
  PageSize,    // S of one cache: entries per page. Chosen once per session
  TableWidth,  // N of one cache: pages per sequence. Chosen once per session
  Slots        // number of sequence slots of the session. Chosen once per session
};
inline bool per_step(Base base) { return base <= Base::LogitRows; }

// value = scale * base + add, for example B + 1 or T * heads.
struct Symbol {
  std::string name;  // "T", "B", "R", "B+1", "T*4", "P0"
  Base base = Base::Tokens;
  Id cache = kNone;  // index into Program::caches for Pages, PageSize, TableWidth
  int64_t scale = 1;
  int64_t add = 0;
  int64_t nominal = 0;  // stands in while shapes are inferred; distinct from other dimensions
};

struct Dim {
  int64_t value = 0;    // the extent; for a symbolic dimension its nominal
  uint32_t symbol = 0;  // 1-based index into Program::symbols; 0: fixed
};
inline bool operator==(const Dim& a, const Dim& b) { return a.value == b.value && a.symbol == b.symbol; }
using Shape = std::vector<Dim>;

// ---- Values --------------------------------------------------------------------------------------------------------

enum class TypeRule : uint8_t {
  Activation,  // the session's compute type: f32, bf16 or f16
  Checkpoint,  // a floating weight: as stored, or what the loader converts it to
  Fixed        // Value::dtype: f32 where precision must not drop, integers
};

enum class Origin : uint8_t { Input, Weight, State, Constant, Node, View };

struct Value {
  std::string name;  // unique: "layers.0.self_attn.q"
  Origin origin = Origin::Node;
  Id index = kNone;  // into inputs, weights, states, constants or nodes; unused for a view
  std::string port;  // origin Node: output port
  TypeRule rule = TypeRule::Activation;
  dgpuDtype_t dtype = 0;  // with TypeRule::Fixed
  Shape shape;
  // A view reads (or is) a part of `base`, which is never a view itself: element [i0, i1, ...] is at offset + sum(i *
  // strides), in elements. All other values are row-major and dense. A stride of kDense stands for the base's own
  // stride in that dimension, which only the session knows where inner extents are its choice (pages of a cache): see
  // resolved_strides. The state after a write is a view of the whole state with `effect` set.
  Id base = kNone;
  int64_t offset = 0;
  std::vector<int64_t> strides;
  Id effect = kNone;  // node whose write must have been submitted before this view is read
  bool is_view() const { return origin == Origin::View; }
};

// ---- Inputs --------------------------------------------------------------------------------------------------------

enum class InputKind : uint8_t {
  Tokens,         // i32[T]    token ids
  Positions,      // i32[T]    position of each token in its sequence
  Offsets,        // i32[B+1]  first token of each sequence; [B] = T
  Rows,           // i32[T]    index of the sequence in the step, 0..B-1
  TotalLengths,   // i32[B]    tokens of each sequence, those of this step included
  LogitRows,      // i32[R]    token indices whose logits are wanted
  SequenceSlots,  // i32[B]    session slot of each sequence: leading index of fixed states
  // Per cache (Input::cache):
  CacheSlots,      // i32[T]    page * S + place where each token's entry goes; -1: none
  CacheTable,      // i32[B,N]  pages of each sequence
  CacheLengths,    // i32[B]    entries of each sequence, those of this step included; at most N * S but for rings
  CachePositions,  // i32[P,S]  position of the entry in each slot. Slots not in use: any number
  CacheRows        // i32[P,S]  index in the step of the sequence that owns the slot; slots of others: 0
};
const char* name_of(InputKind kind);

struct Input {
  InputKind kind = InputKind::Tokens;
  Id cache = kNone;  // into Program::caches
  Id value = kNone;
};

// ---- States --------------------------------------------------------------------------------------------------------

// Entries that are paged alike: states of one cache share table, slots and lengths.
struct Cache {
  std::string name;   // "tokens", "window.4096"
  int64_t cap = 0;    // entries older than the last `cap` positions are never visible (window); 0: no limit
  int64_t every = 1;  // one entry per `every` tokens
  // Entry j lies at place j mod (N S) of its sequence and may overwrite an older one. The ring must hold the tokens of
  // a step and what the first of them sees: at least cap - 1 + tokens of one step.
  bool ring() const { return cap > 0 && every == 1; }
};

struct State {
  std::string name;   // "layers.0.self_attn.c.k"
  std::string kind;   // "kv", "latent", "index", "conv", "recurrent", "pool", "int" ...
  std::string owner;  // block instance: "layers.0.self_attn"
  Id cache = kNone;   // paged: value is [P,S,entry...]; kNone: fixed, value is [slots,entry...], zero at start
  std::vector<int64_t> entry;
  TypeRule rule = TypeRule::Activation;
  dgpuDtype_t dtype = 0;
  bool rewinds = true;  // entries of later tokens can be forgotten by shortening the length
  Id value = kNone;
};

// ---- Weights -------------------------------------------------------------------------------------------------------

enum class TensorClass : uint8_t { Float, Integer };

// A tensor of the checkpoint that the program needs (listed once, however often it is used).
struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  TensorClass cls = TensorClass::Float;
  dgpuDtype_t kept = 0;  // F32: the family publishes it in f32 (for synthesis); I64; 0: the model's own type
};

// A strided region of a checkpoint tensor and where its elements go in the weight: element [i0,i1,..] (i < shape) at
// src_offset + sum(i * src_strides) goes to dst_offset + sum(i * dst_strides). All in elements.
struct Block {
  Id tensor = kNone;  // into Program::tensors
  std::vector<int64_t> shape, src_strides, dst_strides;
  int64_t src_offset = 0;
  int64_t dst_offset = 0;
};

// A weight as the operators want it: dense, row-major, assembled from blocks that cover it exactly.
struct Weight {
  std::string name;  // checkpoint name, or "a+b" / "experts.{e}" for several
  std::vector<int64_t> shape;
  TensorClass cls = TensorClass::Float;
  std::vector<Block> blocks;
  std::string tp;  // sharding hint: "", "col", "row", "vocab", "expert", "head"
  Id value = kNone;
};

struct Constant {
  std::string name;
  dgpuDtype_t dtype = 0;  // F32, I32 or I64
  std::vector<int64_t> shape;
  std::vector<double> data;  // row-major
  Id value = kNone;
};

// ---- Nodes ---------------------------------------------------------------------------------------------------------

struct Binding {
  std::string port;
  Id value = kNone;
};

struct Node {
  std::string op;
  std::string name;  // "layers.0.self_attn.linear", for messages and traces
  std::map<std::string, ops::AttrValue, std::less<>> attrs;
  std::vector<Binding> inputs;   // in and inout ports
  std::vector<Binding> outputs;  // out and inout ports; inout: a view with effect
  bool once = false;             // depends on nothing that changes from step to step: run once per session
  bool is_extern = false;        // declared by the template, not known to this library: cannot run
  Id input(std::string_view port) const;
  Id output(std::string_view port) const;
};

struct Tap {
  std::string name;  // "layers.0.self_attn"
  Id value = kNone;
};

struct SkippedTensor {
  std::string pattern;  // with * for any text
  std::string reason;
};

struct Limit {
  std::string key;   // config key
  std::string role;  // "max_positions" ...
  int64_t value = 0;
};

// ---- Program -------------------------------------------------------------------------------------------------------

struct Program {
  std::string family;                // template name
  std::string scope = "causal";      // causal: sequences grow; whole: one step per sequence, no states
  dgpuDtype_t checkpoint_dtype = 0;  // what the config says the weights are stored in; 0: not said
  int64_t layers = 0, hidden = 0, vocab = 0;
  int64_t max_positions = 0;    // 0: no limit
  std::vector<Symbol> symbols;  // symbol id = index + 1. 1: T, 2: B, 3: R
  std::vector<Value> values;
  std::vector<Input> inputs;
  std::vector<Cache> caches;
  std::vector<State> states;
  std::vector<Tensor> tensors;
  std::vector<Weight> weights;
  std::vector<Constant> constants;
  std::vector<Node> nodes;  // execution order
  std::vector<Tap> taps;    // execution order of their producers; names unique
  std::vector<SkippedTensor> skipped;
  std::vector<Limit> limits;
  Id logits = kNone;  // [R, vocab]

  const Value& value(Id id) const { return values[id]; }
  Id root(Id id) const { return values[id].is_view() ? values[id].base : id; }  // the value that owns the memory
  // The node that must run before the value can be read, or kNone.
  Id producer(Id id) const;
  // Up to this many tokens of a sequence the values of its tokens do not depend on how many follow. INT64_MAX unless
  // rope frequencies change with the length (type dynamic).
  int64_t length_independent() const;
  Id find_input(InputKind kind, Id cache = kNone) const;  // value, or kNone if the program does not use it
  const Tensor* find_tensor(std::string_view name) const;
  const SkippedTensor* find_skipped(std::string_view tensor) const;  // the pattern that the tensor matches, or null
  bool skips(std::string_view tensor) const { return find_skipped(tensor) != nullptr; }

  uint32_t symbol(Base base, int64_t scale = 1, int64_t add = 0, Id cache = kNone);  // finds or adds; 1-based
  Dim dim(uint32_t symbol_id) const { return {symbols[symbol_id - 1].nominal, symbol_id}; }
};

// Numbers that a session chooses, to turn program shapes into tensor descriptions.
struct Extents {
  int64_t tokens = 0, sequences = 0, logit_rows = 0;  // per-step maxima, or the values of one step
  int64_t slots = 0;
  std::vector<int64_t> pages, page_size, table_width;  // per cache
};
int64_t evaluate(const Symbol& symbol, const Extents& extents);
// All symbols, in id order: what dgpuOpPlanExecute takes (session-fixed ones get their value, too).
std::vector<int64_t> evaluate_symbols(const Program& program, const Extents& extents);
// The description with per-step dimensions symbolic (maximum in shape) and session dimensions fixed. `activation` and
// `checkpoint` are the types for values of these rules.
dgpuTensorDesc describe(const Program& program, Id value, const Extents& maxima, dgpuDtype_t activation,
                        dgpuDtype_t checkpoint);
int64_t element_count(const std::vector<int64_t>& shape);
// Strides of any value, in elements, for these extents.
std::vector<int64_t> resolved_strides(const Program& program, Id value, const Extents& extents);

// Last node that reads each value's memory (by root), or kNone; taps and logits count as read after the last node.
std::vector<Id> last_uses(const Program& program);
// Structural check: ids in range, every value defined before use, ports bound once. INTERNAL with a message.
Status verify(const Program& program);

std::string to_text(const Program& program);  // one line per item, stable

}  // namespace dgpu::graph
