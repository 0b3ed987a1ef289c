// Assembly of weights from strided blocks, against plain loops over the same data.
#include "model/weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

namespace dgpu::model {
namespace {
namespace fs = std::filesystem;

class Weights : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("weights_test." + std::to_string(getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  // A checkpoint with one tensor "t" of rows x columns; element i is i.
  template <class T>
  void write(dgpuDtype_t dtype, int64_t rows, int64_t columns) {
    std::vector<T> data(static_cast<size_t>(rows * columns));
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<T>(i);
    const auto source = [&](const auto& sink) { return sink(data.data(), data.size() * sizeof(T)); };
    ASSERT_EQ(write_safetensors((dir_ / "model.safetensors").string(), {{"t", dtype, {rows, columns}, source}}, {}), 0);
    checkpoint_ = {};
    ASSERT_EQ(Checkpoint::open(dir_.string(), checkpoint_), 0);
    program_ = {};
    program_.tensors.push_back({});
    program_.tensors[0].name = "t";
    program_.tensors[0].shape = {rows, columns};
  }
  // `rows` x `columns` elements from `offset` on with these strides, dense in the weight.
  graph::Weight weight(int64_t rows, int64_t columns, int64_t offset, int64_t row, int64_t column) {
    graph::Weight w;
    w.shape = {rows, columns};
    w.blocks.push_back({0, {rows, columns}, {row, column}, {columns, 1}, offset, 0});
    return w;
  }
  template <class T>
  void expect(const graph::Weight& w, dgpuDtype_t dtype) {
    const auto& b = w.blocks[0];
    const int64_t rows = b.shape[0], columns = b.shape[1];
    std::vector<T> got(static_cast<size_t>(rows * columns), T(-1));
    ASSERT_EQ(assemble(program_, checkpoint_, w, dtype, got.data()), 0) << last_error().message;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        ASSERT_EQ(got[static_cast<size_t>(i * columns + j)],
                  static_cast<T>(b.src_offset + i * b.src_strides[0] + j * b.src_strides[1]))
            << i << "," << j;
  }
  fs::path dir_;
  Checkpoint checkpoint_;
  graph::Program program_;
};

// 16 MiB: more than is read at once, in every order of dimensions.
TEST_F(Weights, AreReadInPartsOfTheFile) {
  constexpr int64_t kRows = 2048, kColumns = 2048;
  write<float>(DGPU_DTYPE_F32, kRows, kColumns);
  expect<float>(weight(kRows, kColumns, 0, kColumns, 1), DGPU_DTYPE_F32);
  expect<float>(weight(kColumns, kRows, 0, 1, kColumns), DGPU_DTYPE_F32);                 // transposed
  expect<float>(weight(kRows / 2, kColumns, kColumns, 2 * kColumns, 1), DGPU_DTYPE_F32);  // odd rows
  expect<float>(weight(kRows, kColumns / 2, 1, kColumns, 2), DGPU_DTYPE_F32);             // odd columns
  expect<float>(weight(2, kRows * kColumns / 2, 0, kRows * kColumns / 2, 1), DGPU_DTYPE_F32);
  expect<float>(weight(kRows, 2, kColumns - 1, kColumns, -(kColumns - 1)), DGPU_DTYPE_F32);  // backwards
  expect<double>(weight(kColumns, kRows, 0, 1, kColumns), DGPU_DTYPE_F64);
}

TEST_F(Weights, AreConverted) {
  write<double>(DGPU_DTYPE_F64, 3, 5);
  expect<float>(weight(5, 3, 0, 1, 5), DGPU_DTYPE_F32);
  write<int32_t>(DGPU_DTYPE_I32, 3, 5);
  program_.tensors[0].cls = graph::TensorClass::Integer;
  expect<int64_t>(weight(5, 3, 0, 1, 5), DGPU_DTYPE_I64);
  graph::Weight empty;
  empty.shape = {0, 5};
  empty.blocks.push_back({0, {0, 5}, {5, 1}, {5, 1}, 0, 0});
  EXPECT_EQ(assemble(program_, checkpoint_, empty, DGPU_DTYPE_I64, nullptr), 0);
}

TEST_F(Weights, AFileThatBecameShorterIsAnError) {
  write<double>(DGPU_DTYPE_F64, 64, 64);
  fs::resize_file(dir_ / "model.safetensors", fs::file_size(dir_ / "model.safetensors") - 64 * 8);
  std::vector<float> got(64 * 64);
  EXPECT_EQ(assemble(program_, checkpoint_, weight(64, 64, 0, 64, 1), DGPU_DTYPE_F32, got.data()),
            DGPU_STATUS_IO_ERROR);
}

}  // namespace
}  // namespace dgpu::model
