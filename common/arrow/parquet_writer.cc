#include <arrow/io/file.h>
#include <parquet/column_writer.h>
#include <parquet/exception.h>
#include <parquet/file_writer.h>
#include <parquet/properties.h>
#include <parquet/schema.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arrow/arrow_files.h"
#include "common/arrow/parquet.h"
#include "common/base/check.h"

namespace thermocline {
namespace {

namespace schema = parquet::schema;

schema::NodePtr NodeOf(const ParquetOutput& column) {
  constexpr auto kRequired = parquet::Repetition::REQUIRED;
  switch (column.values.index()) {
    case 0:
      return schema::Int64(column.name, kRequired);
    case 1:
      return schema::Float(column.name, kRequired);
    case 2:
      return schema::Double(column.name, kRequired);
    default:
      return schema::PrimitiveNode::Make(column.name, kRequired, parquet::LogicalType::String(),
                                         parquet::Type::BYTE_ARRAY);
  }
}

size_t RowsOf(const ParquetOutput& column) {
  return std::visit([](const auto& values) { return values.size(); }, column.values);
}

void WriteColumn(const ParquetOutput& column, parquet::ColumnWriter* writer) {
  const auto rows = static_cast<int64_t>(RowsOf(column));
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&column.values)) {
    static_cast<parquet::Int64Writer*>(writer)->WriteBatch(rows, nullptr, nullptr,
                                                           integers->data());
  } else if (const auto* floats = std::get_if<std::vector<float>>(&column.values)) {
    static_cast<parquet::FloatWriter*>(writer)->WriteBatch(rows, nullptr, nullptr, floats->data());
  } else if (const auto* doubles = std::get_if<std::vector<double>>(&column.values)) {
    static_cast<parquet::DoubleWriter*>(writer)->WriteBatch(rows, nullptr, nullptr,
                                                            doubles->data());
  } else {
    std::vector<parquet::ByteArray> views;
    views.reserve(rows);
    for (const std::string& text : std::get<std::vector<std::string>>(column.values)) {
      views.emplace_back(static_cast<uint32_t>(text.size()),
                         reinterpret_cast<const uint8_t*>(text.data()));
    }
    static_cast<parquet::ByteArrayWriter*>(writer)->WriteBatch(rows, nullptr, nullptr,
                                                               views.data());
  }
}

class ArrowParquetWriter : public ParquetWriter {
 public:
  ArrowParquetWriter(std::string path, std::shared_ptr<arrow::io::FileOutputStream> out)
      : path_(std::move(path)), out_(std::move(out)) {}
  ~ArrowParquetWriter() override {
    if (closed_) return;
    writer_ = nullptr;
    (void)out_->Close();
    std::remove(TemporaryPath(path_).c_str());
  }

  static std::string TemporaryPath(const std::string& path) { return path + ".tmp"; }

  absl::Status Append(const std::vector<ParquetOutput>& columns) override {
    CHECK(!columns.empty());
    for (const ParquetOutput& column : columns) CHECK_EQ(RowsOf(column), RowsOf(columns[0]));
    try {
      if (writer_ == nullptr) Begin(columns);
      parquet::RowGroupWriter* const group = writer_->AppendRowGroup();
      for (const ParquetOutput& column : columns) WriteColumn(column, group->NextColumn());
      group->Close();
    } catch (const std::exception& error) {
      return Failed(error.what());
    }
    return absl::OkStatus();
  }

  absl::Status Close() override {
    CHECK(writer_ != nullptr);
    try {
      writer_->Close();
    } catch (const std::exception& error) {
      return Failed(error.what());
    }
    const arrow::Status status = out_->Close();
    if (!status.ok()) return Failed(status.message());
    if (std::rename(TemporaryPath(path_).c_str(), path_.c_str()) != 0) {
      return Failed("cannot be renamed from its temporary name");
    }
    closed_ = true;
    return absl::OkStatus();
  }

 private:
  void Begin(const std::vector<ParquetOutput>& columns) {
    schema::NodeVector nodes;
    for (const ParquetOutput& column : columns) nodes.push_back(NodeOf(column));
    auto root = std::static_pointer_cast<schema::GroupNode>(
        schema::GroupNode::Make("schema", parquet::Repetition::REQUIRED, nodes));
    parquet::WriterProperties::Builder properties;
    properties.compression(parquet::Compression::SNAPPY);
    writer_ = parquet::ParquetFileWriter::Open(out_, std::move(root), properties.build());
  }

  absl::Status Failed(absl::string_view what) const {
    return absl::UnavailableError(absl::StrCat(path_, ": cannot write: ", what));
  }

  const std::string path_;
  const std::shared_ptr<arrow::io::FileOutputStream> out_;
  std::unique_ptr<parquet::ParquetFileWriter> writer_;
  bool closed_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ParquetWriter>> ParquetWriter::Create(const std::string& path) {
  auto out = arrow::io::FileOutputStream::Open(ArrowParquetWriter::TemporaryPath(path));
  if (!out.ok()) return FromArrow(path, out.status());
  return std::make_unique<ArrowParquetWriter>(path, *std::move(out));
}

}  // namespace thermocline
