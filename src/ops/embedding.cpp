// embedding: rows of a table by index.
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

Status infer(const OpSpec& spec, Outputs& outputs) {
  DGPU_TRY(expect_rank(spec, "table", 1));
  const Dims table = dims(spec, "table");
  Dims out = dims(spec, "ids");
  out.insert(out.end(), table.begin() + 1, table.end());
  if (out.size() > DGPU_MAX_RANK)
    return bad_shape(spec, "ids", "{} with the rows of table {} gives rank {}: expected at most {}",
                     text(dims(spec, "ids")), text(table), out.size(), DGPU_MAX_RANK);
  outputs["out"] = packed(dtype(spec, "table"), out);
  return DGPU_STATUS_SUCCESS;
}

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto& table = t.find("table")->second;
  const auto& ids = t.find("ids")->second.i;
  auto& out = t.find("out")->second;
  const int64_t rows = table.shape[0];
  const int64_t width = rows ? table.size() / rows : 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= rows)
      return bad_data(spec, "ids", "ids[{}] = {}: expected 0 to {}", i, ids[i], rows - 1);
    for (int64_t j = 0; j < width; ++j) {
      const size_t to = i * width + j, from = ids[i] * width + j;
      if (table.is_int())
        out.i[to] = table.i[from];
      else
        out.f[to] = table.f[from];
    }
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

const Schema& embedding() {
  static const auto* schema =
      new Schema{"embedding",
                 1,
                 "Rows of a table by index; gathers rows of any tensor.",
                 {},
                 {in("table", numbers(), "rows along the first dimension"),
                  in("ids", integers(), "row of each output row"), out("out", numbers(), "the rows")},
                 infer,
                 reference};
  return *schema;
}

}  // namespace dgpu::ops::schemas
