#include "model/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace dgpu::model {
namespace {
namespace fs = std::filesystem;

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("safetensors_test." + std::to_string(getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::string file(const std::string& name, const std::string& header, size_t data_bytes) {
    std::string bytes(8, '\0');
    const uint64_t n = header.size();
    std::memcpy(bytes.data(), &n, 8);
    return raw(name, bytes + header + std::string(data_bytes, 'x'));
  }
  std::string raw(const std::string& name, const std::string& bytes) {
    const auto path = (dir_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  // Opens and expects an error whose text holds `words`.
  void refused(const std::string& path, dgpuStatus_t status, const std::string& words) {
    std::shared_ptr<SafetensorsFile> f;
    EXPECT_EQ(SafetensorsFile::open(path, f), status) << words;
    EXPECT_NE(std::string(last_error().message).find(words), std::string::npos) << last_error().message;
    EXPECT_EQ(f, nullptr);
  }
  fs::path dir_;
};

TEST_F(Safetensors, WriteThenReadGivesTheSameBytes) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> b = {7};
  const auto path = (dir_ / "model.safetensors").string();
  const auto source = [](const void* p, size_t n) { return [=](const auto& sink) { return sink(p, n); }; };
  ASSERT_EQ(write_safetensors(path,
                              {{"a", DGPU_DTYPE_F32, {2, 3}, source(a.data(), 24)},
                               {"b", DGPU_DTYPE_I64, {1}, source(b.data(), 8)},
                               {"empty", DGPU_DTYPE_BF16, {0, 4}, source(nullptr, 0)}},
                              {{"source", "test"}}),
            0);
  Checkpoint c;
  ASSERT_EQ(Checkpoint::open(dir_.string(), c), 0) << last_error().message;
  ASSERT_NE(c.find("a"), nullptr);
  EXPECT_EQ(c.find("a")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(c.find("empty")->bytes, 0u);
  EXPECT_EQ(std::memcmp(c.file(*c.find("a")).map() + c.find("a")->offset, a.data(), 24), 0);
  float part[2];
  EXPECT_EQ(c.file(*c.find("a")).read(*c.find("a"), 8, 8, part), 0);
  EXPECT_EQ(part[0], 3);
  EXPECT_EQ(c.files()[0]->metadata().at("source"), "test");
  EXPECT_EQ(c.bytes(), 32u);
}

TEST_F(Safetensors, RefusesWhatIsNotTheFormat) {
  const auto t = [](const char* begin_end) {
    return std::string(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)") + begin_end + "}}";
  };
  refused((dir_ / "none").string(), DGPU_STATUS_NOT_FOUND, "cannot open");
  refused(dir_.string(), DGPU_STATUS_PARSE_ERROR, "not a regular file");
  const std::string pipe = (dir_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  refused(pipe, DGPU_STATUS_PARSE_ERROR, "not a regular file");
  refused(raw("short", "abc"), DGPU_STATUS_PARSE_ERROR, "shorter than 8 bytes");
  refused(raw("huge", std::string(8, '\xff') + "x"), DGPU_STATUS_PARSE_ERROR, "above the limit");
  refused(raw("past", std::string("\x40\0\0\0\0\0\0\0{}", 10)), DGPU_STATUS_PARSE_ERROR, "truncated");
  refused(file("json", "{\"a\":", 0), DGPU_STATUS_PARSE_ERROR, "JSON error");
  refused(file("list", "[]", 0), DGPU_STATUS_PARSE_ERROR, "not a JSON object");
  refused(file("back", t("[8,0]"), 8), DGPU_STATUS_PARSE_ERROR, "backwards");
  refused(file("trunc", t("[0,8]"), 4), DGPU_STATUS_PARSE_ERROR, "truncated");
  refused(file("size", t("[0,4]"), 4), DGPU_STATUS_PARSE_ERROR, "span 4 bytes");
  refused(file("tail", t("[0,8]"), 9), DGPU_STATUS_PARSE_ERROR, "after the last tensor");
  refused(file("hole", t("[4,12]"), 12), DGPU_STATUS_PARSE_ERROR, "unused bytes before tensor 'a'");
  refused(file("neg", R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}})", 0), DGPU_STATUS_PARSE_ERROR,
          "not a size");
  refused(file("wrap", R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
          DGPU_STATUS_PARSE_ERROR, "overflows");
  refused(file("dtype", R"({"a":{"dtype":"F33","shape":[],"data_offsets":[0,4]}})", 4), DGPU_STATUS_PARSE_ERROR,
          "unknown dtype");
  refused(file("rank", R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1),
          DGPU_STATUS_PARSE_ERROR, "rank 9");
  refused(
      file(
          "twice",
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
          1),
      DGPU_STATUS_PARSE_ERROR, "appears twice");
  refused(file("deep", R"({"a":{"dtype":"U8","shape":[[[1]]],"data_offsets":[0,1]}})", 1), DGPU_STATUS_PARSE_ERROR,
          "deep");
  refused(
      file(
          "overlap",
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
          3),
      DGPU_STATUS_PARSE_ERROR, "overlaps");
  refused(file("meta", R"({"__metadata__":{"a":1}})", 0), DGPU_STATUS_PARSE_ERROR, "not a string");
  refused(file("extra", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0}})", 1), DGPU_STATUS_PARSE_ERROR,
          "unknown key 'x'");
}

// Every truncation and every flipped header byte of a good file is either refused or read as a valid layout.
TEST_F(Safetensors, SurvivesTruncationAndBitFlips) {
  const std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]}})";
  std::string bytes(8, '\0');
  const uint64_t n = header.size();
  std::memcpy(bytes.data(), &n, 8);
  bytes += header + std::string(14, 'x');
  std::shared_ptr<SafetensorsFile> f;
  for (size_t cut = 0; cut < bytes.size(); cut++)
    EXPECT_LT(SafetensorsFile::open(raw("cut", bytes.substr(0, cut)), f), 0) << cut;
  for (size_t i = 0; i < bytes.size() - 14; i++)
    for (int bit = 0; bit < 8; bit += 3) {
      auto flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      std::shared_ptr<SafetensorsFile> g;
      if (SafetensorsFile::open(raw("flip", flipped), g) != 0) continue;
      for (const auto& [name, t] : g->tensors()) EXPECT_LE(t.offset + t.bytes, bytes.size());
    }
}

TEST_F(Safetensors, ShardedIndexIsCheckedAgainstItsFiles) {
  const char* one = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const char* two = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  file("s1.safetensors", one, 1);
  file("s2.safetensors", two, 1);
  const auto open = [&](const std::string& index) {
    raw("model.safetensors.index.json", index);
    Checkpoint c;
    const auto s = Checkpoint::open(dir_.string(), c);
    if (s == 0) {
      EXPECT_EQ(c.tensors().size(), 2u);
    }
    return s;
  };
  EXPECT_EQ(open(R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})"), 0);
  EXPECT_EQ(open(R"({"weight_map":{"a":"s1.safetensors","b":"s1.safetensors"}})"), DGPU_STATUS_PARSE_ERROR);
  EXPECT_EQ(open(R"({"weight_map":{"a":"s1.safetensors","b":"s3.safetensors"}})"), DGPU_STATUS_NOT_FOUND);
  EXPECT_EQ(open(R"({"weight_map":{"a":"s2.safetensors","b":"s2.safetensors"}})"), DGPU_STATUS_PARSE_ERROR);
  EXPECT_EQ(open(R"({"weight_map":{"a":"../s1.safetensors"}})"), DGPU_STATUS_PARSE_ERROR);
  EXPECT_EQ(open(R"({"weight_map":3})"), DGPU_STATUS_PARSE_ERROR);
  EXPECT_EQ(open("{"), DGPU_STATUS_PARSE_ERROR);
}

}  // namespace
}  // namespace dgpu::model
