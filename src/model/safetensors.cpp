#include "model/safetensors.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

namespace dgpu::model {
namespace {

constexpr uint64_t kMaxHeader = 100u << 20;  // the limit of the published implementation
constexpr size_t kMaxRank = DGPU_MAX_RANK;

struct DtypeRow {
  const char* name;
  dgpuDtype_t dtype;
  uint32_t bits;
};
constexpr DtypeRow kDtypes[] = {
    {"F64", DGPU_DTYPE_F64, 64},       {"F32", DGPU_DTYPE_F32, 32},       {"F16", DGPU_DTYPE_F16, 16},
    {"BF16", DGPU_DTYPE_BF16, 16},     {"F8_E4M3", DGPU_DTYPE_F8E4M3, 8}, {"F8_E5M2", DGPU_DTYPE_F8E5M2, 8},
    {"F8_E8M0", DGPU_DTYPE_F8E8M0, 8}, {"F4", DGPU_DTYPE_F4E2M1, 4},      {"I8", DGPU_DTYPE_I8, 8},
    {"U8", DGPU_DTYPE_U8, 8},          {"I16", DGPU_DTYPE_I16, 16},       {"I32", DGPU_DTYPE_I32, 32},
    {"I64", DGPU_DTYPE_I64, 64},       {"BOOL", DGPU_DTYPE_BOOL, 8},      {"U16", DGPU_DTYPE_NONE, 16},
    {"U32", DGPU_DTYPE_NONE, 32},      {"U64", DGPU_DTYPE_NONE, 64},
};

using Json = nlohmann::json;

// Builds the header's value tree while refusing duplicate keys and deep nesting, which the plain parser accepts.
class HeaderSax : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderSax(Json& root) : dom_(root, false) {}
  std::string error;

  bool null() override { return dom_.null(); }
  bool boolean(bool v) override { return dom_.boolean(v); }
  bool number_integer(int64_t v) override { return dom_.number_integer(v); }
  bool number_unsigned(uint64_t v) override { return dom_.number_unsigned(v); }
  bool number_float(double v, const std::string& s) override { return dom_.number_float(v, s); }
  bool string(std::string& v) override { return dom_.string(v); }
  bool binary(Json::binary_t& v) override { return dom_.binary(v); }
  bool start_object(size_t n) override {
    keys_.emplace_back();
    if (keys_.size() > 4) return refuse("nesting is too deep");
    return dom_.start_object(n);
  }
  bool key(std::string& k) override {
    if (!keys_.back().emplace(k, true).second) return refuse("key '" + k + "' appears twice");
    return dom_.key(k);
  }
  bool end_object() override {
    keys_.pop_back();
    return dom_.end_object();
  }
  bool start_array(size_t n) override {
    if (++arrays_ > 2) return refuse("nesting is too deep");
    return dom_.start_array(n);
  }
  bool end_array() override {
    --arrays_;
    return dom_.end_array();
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& e) override {
    return refuse(fmt::format("JSON error at byte {}: {}", at, e.what()));
  }

 private:
  bool refuse(std::string why) {
    if (error.empty()) error = std::move(why);
    return false;
  }
  nlohmann::detail::json_sax_dom_parser<Json> dom_;
  std::vector<std::map<std::string, bool>> keys_;
  int arrays_ = 0;
};

Status bad(const std::string& path, const std::string& what) {
  return fail(DGPU_STATUS_PARSE_ERROR, path, "{}: {}", path, what);
}

Status parse_tensor(const std::string& path, const std::string& name, const Json& j, uint64_t data_start,
                    uint64_t data_size, TensorInfo& t) {
  const auto wrong = [&](const std::string& what) { return bad(path, fmt::format("tensor '{}': {}", name, what)); };
  if (!j.is_object()) return wrong("its entry must be an object with dtype, shape and data_offsets");
  for (const auto& [key, value] : j.items())
    if (key != "dtype" && key != "shape" && key != "data_offsets") return wrong(fmt::format("unknown key '{}'", key));
  if (!j.contains("dtype") || !j["dtype"].is_string()) return wrong("'dtype' must be a string");
  t.dtype_name = j["dtype"].get<std::string>();
  const auto* row =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeRow& r) { return t.dtype_name == r.name; });
  if (row == std::end(kDtypes)) return wrong(fmt::format("unknown dtype '{}'", t.dtype_name));
  t.dtype = row->dtype;
  if (!j.contains("shape") || !j["shape"].is_array()) return wrong("'shape' must be an array");
  if (j["shape"].size() > kMaxRank) return wrong(fmt::format("rank {} is above {}", j["shape"].size(), kMaxRank));
  uint64_t bits = row->bits;
  for (const auto& d : j["shape"]) {
    if (!d.is_number_unsigned() || d.get<uint64_t>() > INT64_MAX)
      return wrong("'shape' holds something that is not a size");
    t.shape.push_back(d.get<int64_t>());
    if (__builtin_mul_overflow(bits, d.get<uint64_t>(), &bits)) return wrong("its size overflows 64 bits");
  }
  if (bits % 8) return wrong("its size is not a whole number of bytes");
  const auto offsets = j.value("data_offsets", Json());
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned())
    return wrong("'data_offsets' must be two byte offsets");
  const auto begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
  if (begin > end) return wrong(fmt::format("data_offsets [{}, {}] run backwards", begin, end));
  if (end > data_size)
    return wrong(
        fmt::format("data_offsets end at {} but the file holds {} data bytes; is it truncated?", end, data_size));
  if (end - begin != bits / 8)
    return wrong(fmt::format("data_offsets span {} bytes, dtype and shape need {}", end - begin, bits / 8));
  t.offset = data_start + begin;
  t.bytes = end - begin;
  return DGPU_STATUS_SUCCESS;
}

// The data is one run without overlap or hole, as the format demands.
Status check_layout(const std::string& path, uint64_t data_start, uint64_t file_size,
                    const std::map<std::string, TensorInfo>& tensors) {
  std::vector<const std::pair<const std::string, TensorInfo>*> order;
  for (const auto& entry : tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) {
    return std::pair(a->second.offset, a->second.bytes) < std::pair(b->second.offset, b->second.bytes);
  });
  uint64_t at = data_start;
  for (const auto* entry : order) {
    if (entry->second.offset < at) return bad(path, fmt::format("tensor '{}' overlaps another one", entry->first));
    if (entry->second.offset > at)
      return bad(path, fmt::format("{} unused bytes before tensor '{}'", entry->second.offset - at, entry->first));
    at += entry->second.bytes;
  }
  if (at != file_size) return bad(path, fmt::format("{} bytes after the last tensor", file_size - at));
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

int64_t TensorInfo::elements() const {
  int64_t n = 1;
  for (const auto d : shape) n *= d;
  return n;
}

struct SafetensorsFile::Mapping {
  std::once_flag once;
  void* base = nullptr;
};

Status SafetensorsFile::parse_header(const char* json, size_t size, uint64_t data_start, uint64_t file_size,
                                     const std::string& path, std::map<std::string, TensorInfo>& tensors,
                                     std::map<std::string, std::string>& metadata) {
  Json root;
  HeaderSax sax(root);
  const bool ok = Json::sax_parse(json, json + size, &sax);
  if (!sax.error.empty()) return bad(path, sax.error);
  if (!ok || !root.is_object()) return bad(path, "the header is not a JSON object");
  for (const auto& [name, value] : root.items()) {
    if (name != "__metadata__") {
      DGPU_TRY(parse_tensor(path, name, value, data_start, file_size - data_start, tensors[name]));
      continue;
    }
    if (!value.is_object()) return bad(path, "'__metadata__' must be an object of strings");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) return bad(path, fmt::format("'__metadata__' key '{}' is not a string", key));
      metadata[key] = text.get<std::string>();
    }
  }
  return check_layout(path, data_start, file_size, tensors);
}

Status SafetensorsFile::open(const std::string& path, std::shared_ptr<SafetensorsFile>& out) {
  auto file = std::make_shared<SafetensorsFile>();
  file->path_ = path;
  file->mapping_ = std::make_unique<Mapping>();
  DGPU_TRY(file->file_.open(path));
  uint64_t header = 0;
  const uint64_t size = file->size();
  if (size < 8) return bad(path, "shorter than 8 bytes, so there is no header; is it truncated?");
  DGPU_TRY(file->file_.read(&header, 8, 0, path));
  if (header > kMaxHeader)
    return bad(path, fmt::format("header length {} is above the limit of {}", header, kMaxHeader));
  if (header > size - 8)
    return bad(path, fmt::format("header length {} reaches past the file's {} bytes; is it truncated?", header, size));
  std::string json(header, '\0');
  DGPU_TRY(file->file_.read(json.data(), header, 8, path));
  DGPU_TRY(parse_header(json.data(), json.size(), 8 + header, size, path, file->tensors_, file->metadata_));
  out = std::move(file);
  return DGPU_STATUS_SUCCESS;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ && mapping_->base) munmap(mapping_->base, size());
}

uint8_t* SafetensorsFile::map() {
  std::call_once(mapping_->once, [&] {
    void* p = mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file_.fd(), 0);
    if (p != MAP_FAILED) mapping_->base = p;
  });
  if (!mapping_->base) fail(DGPU_STATUS_IO_ERROR, path_, "{}: cannot map it into memory", path_);
  return static_cast<uint8_t*>(mapping_->base);
}

Status SafetensorsFile::populate(const TensorInfo& tensor, uint64_t begin, uint64_t bytes) {
  uint8_t* base = map();
  if (!base) return DGPU_STATUS_IO_ERROR;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t first = (tensor.offset + begin) / page * page;
#if defined(MADV_POPULATE_READ)
  if (madvise(base + first, tensor.offset + begin + bytes - first, MADV_POPULATE_READ) == 0 || errno == EINVAL)
    return DGPU_STATUS_SUCCESS;  // a system older than Linux 5.14 brings pages when they are touched
  const int error = errno;
  return fail(DGPU_STATUS_IO_ERROR, path_, "{}: cannot read it through its mapping ({}); did it become shorter?", path_,
              strerror(error));
#else
  return DGPU_STATUS_SUCCESS;
#endif
}

Status SafetensorsFile::read(const TensorInfo& tensor, uint64_t begin, uint64_t bytes, void* dst) const {
  if (begin > tensor.bytes || bytes > tensor.bytes - begin)
    return fail(DGPU_STATUS_INTERNAL, path_, "{}: read past the end of a tensor", path_);
  return file_.read(dst, bytes, tensor.offset + begin, path_);
}

const char* safetensors_dtype(dgpuDtype_t dtype) {
  for (const auto& row : kDtypes)
    if (row.dtype == dtype && dtype != DGPU_DTYPE_NONE) return row.name;
  return nullptr;
}

}  // namespace dgpu::model
