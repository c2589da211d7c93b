#include "common/arrow/testing/test_parquet.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/json/from_string.h>
#include <parquet/arrow/writer.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace thermocline {
namespace {

template <typename T>
T OrDie(arrow::Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    std::abort();
  }
  return *std::move(result);
}

std::shared_ptr<arrow::DataType> TypeOf(absl::string_view name) {
  if (absl::ConsumePrefix(&name, "list of ")) return arrow::list(TypeOf(name));
  if (absl::ConsumePrefix(&name, "two of ")) return arrow::fixed_size_list(TypeOf(name), 2);
  if (name == "map") return arrow::map(arrow::utf8(), arrow::int64());
  const std::shared_ptr<arrow::DataType> types[] = {arrow::int8(),
                                                    arrow::int16(),
                                                    arrow::int32(),
                                                    arrow::int64(),
                                                    arrow::uint8(),
                                                    arrow::uint16(),
                                                    arrow::uint32(),
                                                    arrow::uint64(),
                                                    arrow::float32(),
                                                    arrow::float64(),
                                                    arrow::utf8(),
                                                    arrow::binary(),
                                                    arrow::boolean(),
                                                    arrow::timestamp(arrow::TimeUnit::SECOND),
                                                    arrow::timestamp(arrow::TimeUnit::MILLI),
                                                    arrow::timestamp(arrow::TimeUnit::MICRO),
                                                    arrow::timestamp(arrow::TimeUnit::NANO)};
  for (const auto& type : types) {
    if (type->ToString() == name) return type;
  }
  if (name == "dictionary") return arrow::dictionary(arrow::int32(), arrow::utf8());
  if (name == "date") return arrow::date32();
  if (name == "time[us]") return arrow::time64(arrow::TimeUnit::MICRO);
  if (name == "decimal") return arrow::decimal128(10, 2);
  std::fprintf(stderr, "no such type: %s\n", std::string(name).c_str());
  std::abort();
}

}  // namespace

void WriteTestParquet(const std::string& path, const std::vector<ParquetTestColumn>& columns,
                      const ParquetTestOptions& options) {
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const ParquetTestColumn& column : columns) {
    fields.push_back(arrow::field(column.name, TypeOf(column.type)));
    arrays.push_back(OrDie(arrow::json::ArrayFromJSONString(fields.back()->type(), column.json)));
  }
  const auto table = arrow::Table::Make(arrow::schema(fields), arrays);
  parquet::WriterProperties::Builder properties;
  properties.data_pagesize(options.page_bytes)->write_batch_size(64);
  if (!options.dictionary) properties.disable_dictionary();
  const auto out = OrDie(arrow::io::FileOutputStream::Open(path));
  const arrow::Status status = parquet::arrow::WriteTable(
      *table, arrow::default_memory_pool(), out, options.row_group_rows, properties.build());
  if (!status.ok() || !out->Close().ok()) std::abort();
}

}  // namespace thermocline
