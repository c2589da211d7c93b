#include <arrow/io/file.h>
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/arrow/arrow_files.h"
#include "common/arrow/parquet.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

using Kind = ParquetColumn::Kind;

// Pages of a local file are read through buffers of this size, one for each column.
constexpr int64_t kReadBufferBytes = 256 << 10;
// Levels of a list column that are decoded at a time: what is read beyond the last row stays.
constexpr int64_t kListLevels = 4096;
constexpr int kNanosPerSecondDigits = 9;

// ---- the schema

// What tells a leaf's cells apart.
struct Leaf {
  int column = 0;               // In the file's order of leaves.
  int16_t max_definition = 0;   // A value is there.
  int16_t cell_definition = 0;  // Below: the list has no cell here.
};

void SetTimestamp(const parquet::TimestampLogicalType& timestamp, ParquetColumn* column) {
  using Unit = parquet::LogicalType::TimeUnit;
  column->kind = Kind::kTimestamp;
  const Unit::unit unit = timestamp.time_unit();
  column->units_per_second = unit == Unit::MILLIS   ? 1000
                             : unit == Unit::MICROS ? 1000000
                                                    : 1000000000;
  column->type = unit == Unit::MILLIS   ? "timestamp[ms]"
                 : unit == Unit::MICROS ? "timestamp[us]"
                                        : "timestamp[ns]";
}

void SetIntegerKind(const parquet::LogicalType& logical, int bits, ParquetColumn* column) {
  bool is_signed = true;
  if (logical.is_int()) {
    const auto& integer = static_cast<const parquet::IntLogicalType&>(logical);
    is_signed = integer.is_signed();
    bits = integer.bit_width();
  }
  column->kind = !is_signed && bits == 64 ? Kind::kUnsigned : Kind::kInteger;
  column->type = absl::StrCat(is_signed ? "int" : "uint", bits);
}

// What the values of a leaf are. Leaves kUnsupported what has no text of its own.
void SetKind(const parquet::ColumnDescriptor& leaf, ParquetColumn* column) {
  const parquet::LogicalType& logical = *leaf.logical_type();
  column->type =
      logical.is_none() ? parquet::TypeToString(leaf.physical_type()) : logical.ToString();
  const bool is_plain = logical.is_none() || logical.is_int();
  switch (leaf.physical_type()) {
    case parquet::Type::BOOLEAN:
      column->kind = Kind::kBool;
      column->type = "bool";
      return;
    case parquet::Type::INT32:
      if (is_plain) SetIntegerKind(logical, 32, column);
      if (logical.is_date()) {
        column->kind = Kind::kDate;
        column->type = "date";
      }
      return;
    case parquet::Type::INT64:
      if (is_plain) SetIntegerKind(logical, 64, column);
      if (logical.is_timestamp()) {
        SetTimestamp(static_cast<const parquet::TimestampLogicalType&>(logical), column);
      }
      return;
    case parquet::Type::INT96:  // Only ever timestamps.
      column->kind = Kind::kTimestamp;
      column->units_per_second = 1000000000;
      column->type = "timestamp[ns]";
      return;
    case parquet::Type::FLOAT:
      column->kind = Kind::kFloat;
      column->type = "float32";
      return;
    case parquet::Type::DOUBLE:
      column->kind = Kind::kDouble;
      column->type = "float64";
      return;
    case parquet::Type::BYTE_ARRAY:
      if (logical.is_decimal()) return;
      column->kind = Kind::kText;
      column->type = logical.is_string() || logical.is_none() ? "string" : column->type;
      return;
    case parquet::Type::FIXED_LEN_BYTE_ARRAY:
      if (!logical.is_none()) return;
      column->kind = Kind::kText;
      column->type = "bytes";
      return;
    default:
      return;
  }
}

// Names of the groups from the root to `node`, without the root.
std::string NameOf(const parquet::schema::Node* node) {
  std::vector<std::string> names;
  for (; node->parent() != nullptr; node = node->parent()) names.push_back(node->name());
  std::reverse(names.begin(), names.end());
  return absl::StrJoin(names, ".");
}

// One leaf of the schema: a plain column, a field of a group, or the elements of a list.
ParquetColumn DescribeLeaf(const parquet::ColumnDescriptor& descriptor, Leaf* leaf) {
  ParquetColumn column;
  SetKind(descriptor, &column);
  leaf->max_definition = descriptor.max_definition_level();
  leaf->cell_definition = leaf->max_definition;
  const parquet::schema::Node* node = descriptor.schema_node().get();
  const int16_t repeats = descriptor.max_repetition_level();
  if (repeats == 0) {
    leaf->cell_definition = 0;
    column.name = NameOf(node);
    return column;
  }
  column.is_list = true;
  const parquet::schema::Node* element = node;
  for (; !node->is_repeated(); node = node->parent()) {
    if (node->is_optional()) --leaf->cell_definition;
  }
  const parquet::schema::Node* parent = node->parent();
  const bool is_list = parent->logical_type() != nullptr && parent->logical_type()->is_list();
  const bool is_map = parent->logical_type() != nullptr && parent->logical_type()->is_map();
  // A list of groups has a leaf for each of their fields.
  const bool is_plain = element == node || element->parent() == node;
  const bool has_fields =
      node->is_group() && static_cast<const parquet::schema::GroupNode*>(node)->field_count() > 1;
  column.name = is_list && is_plain && !has_fields
                    ? NameOf(parent)
                    : NameOf(is_plain && !has_fields ? node : element);
  if (repeats > 1 || is_map || !is_plain || has_fields) column.kind = Kind::kUnsupported;
  column.type = absl::StrCat("list of ", column.type);
  return column;
}

// ---- values

template <typename T>
void Extend(size_t count, UninitializedVector<T>* vector) {
  const size_t wanted = vector->size() + count;
  if (wanted > vector->capacity()) vector->reserve(std::max(wanted, 2 * vector->capacity()));
  vector->resize(wanted);
}

void AppendBytes(const uint8_t* data, size_t size, ParquetValues* values) {
  const size_t begin = values->bytes.size();
  Extend(size, &values->bytes);
  if (size > 0) std::copy(data, data + size, reinterpret_cast<uint8_t*>(&values->bytes[begin]));
  Extend(1, &values->ends);
  values->ends.back() = values->bytes.size();
}

// Adds `count` values as the file has them.
template <typename DType>
void Append(const typename DType::c_type* in, size_t count, const parquet::ColumnDescriptor& leaf,
            Kind kind, ParquetValues* values) {
  values->size += count;
  if constexpr (std::is_same_v<DType, parquet::ByteArrayType>) {
    for (size_t i = 0; i < count; ++i) AppendBytes(in[i].ptr, in[i].len, values);
  } else if constexpr (std::is_same_v<DType, parquet::FLBAType>) {
    for (size_t i = 0; i < count; ++i) AppendBytes(in[i].ptr, leaf.type_length(), values);
  } else if constexpr (std::is_floating_point_v<typename DType::c_type>) {
    Extend(count, &values->reals);
    std::copy(in, in + count, values->reals.end() - count);
  } else {
    Extend(count, &values->integers);
    int64_t* const out = values->integers.data() + values->integers.size() - count;
    for (size_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<DType, parquet::Int96Type>) {
        out[i] = parquet::Int96GetNanoSeconds(in[i]);
      } else {
        out[i] = static_cast<int64_t>(in[i]);
      }
    }
    if constexpr (std::is_same_v<DType, parquet::Int32Type>) {
      const parquet::LogicalType& logical = *leaf.logical_type();
      const bool is_unsigned =
          logical.is_int() && !static_cast<const parquet::IntLogicalType&>(logical).is_signed();
      if (is_unsigned) {
        for (size_t i = 0; i < count; ++i) out[i] &= 0xffffffff;
      }
    }
  }
}

// One column of one row group.
class LeafReader {
 public:
  virtual ~LeafReader() = default;
  // Reads `rows` rows, which the row group has left. Throws parquet::ParquetException.
  virtual void Read(int64_t rows, ParquetCells* cells) = 0;
};

template <typename DType>
class TypedLeafReader : public LeafReader {
 public:
  TypedLeafReader(std::shared_ptr<parquet::ColumnReader> reader, const Leaf& leaf,
                  const ParquetColumn& column)
      : reader_(std::move(reader)),
        typed_(static_cast<parquet::TypedColumnReader<DType>*>(reader_.get())),
        descriptor_(*reader_->descr()),
        leaf_(leaf),
        column_(column),
        has_dictionary_(reader_->GetExposedEncoding() == parquet::ExposedEncoding::DICTIONARY) {}

  void Read(int64_t rows, ParquetCells* cells) override {
    *cells = ParquetCells();
    own_ = has_dictionary_ ? nullptr : std::make_shared<ParquetValues>();
    column_.is_list ? ReadLists(rows, cells) : ReadPlain(rows, cells);
    if (has_dictionary_ && dictionary_ == nullptr) {  // Nothing but nulls so far.
      cells->values = std::make_shared<ParquetValues>();
    } else {
      cells->values = has_dictionary_ ? dictionary_ : std::move(own_);
    }
  }

 private:
  using Value = typename DType::c_type;

  // Decodes up to `count` levels and their values, those of one page at most. In indices_ is then
  // the place of each value among cells->values.
  int64_t Decode(int64_t count) {
    if (static_cast<int64_t>(definitions_.size()) < count) {
      definitions_.resize(count);
      repetitions_.resize(count);
      indices_.resize(count);
      if (!has_dictionary_) values_ = std::make_unique<Value[]>(count);
    }
    int16_t* const definitions = leaf_.max_definition > 0 ? definitions_.data() : nullptr;
    int16_t* const repetitions = column_.is_list ? repetitions_.data() : nullptr;
    int64_t values = 0, levels = 0;
    if (has_dictionary_) {
      const Value* entries = nullptr;
      int32_t size = 0;
      levels = typed_->ReadBatchWithDictionary(count, definitions, repetitions, indices_.data(),
                                               &values, &entries, &size);
      if (dictionary_ == nullptr && entries != nullptr) TakeDictionary(entries, size);
      CheckIndices(values);
    } else {
      levels = typed_->ReadBatch(count, definitions, repetitions, values_.get(), &values);
      std::iota(indices_.begin(), indices_.begin() + values, static_cast<int32_t>(own_->size));
      Append<DType>(values_.get(), values, descriptor_, column_.kind, own_.get());
    }
    if (levels == 0) throw parquet::ParquetException("the column ends before the row group does");
    decoded_values_ = values;
    return levels;
  }

  void TakeDictionary(const Value* entries, int32_t size) {
    auto dictionary = std::make_shared<ParquetValues>();
    dictionary->is_dictionary = true;
    Append<DType>(entries, size, descriptor_, column_.kind, dictionary.get());
    dictionary_ = std::move(dictionary);
  }

  void CheckIndices(int64_t count) const {
    const auto size = static_cast<int32_t>(dictionary_ == nullptr ? 0 : dictionary_->size);
    for (int64_t i = 0; i < count; ++i) {
      if (indices_[i] < 0 || indices_[i] >= size) {
        throw parquet::ParquetException("an index lies beyond the dictionary");
      }
    }
  }

  void ReadPlain(int64_t rows, ParquetCells* cells) {
    bool has_indices = has_dictionary_;
    for (int64_t row = 0; row < rows;) {
      const int64_t levels = Decode(rows - row);
      if (!has_indices && decoded_values_ < levels) {  // The first null: those before have none.
        cells->indices.resize(row);
        std::iota(cells->indices.begin(), cells->indices.end(), 0);
        has_indices = true;
      }
      if (has_indices) AppendCells(0, levels, 0, &cells->indices);
      row += levels;
    }
  }

  // Adds the cells of decoded levels [begin, end), the first of which has value `value`. Returns
  // the next value.
  int64_t AppendCells(int64_t begin, int64_t end, int64_t value,
                      UninitializedVector<int32_t>* cells) const {
    Extend(end - begin, cells);
    int32_t* const out = cells->data() + cells->size() - (end - begin);
    if (leaf_.max_definition == 0) {
      std::copy(indices_.begin() + value, indices_.begin() + value + (end - begin), out);
      return value + (end - begin);
    }
    for (int64_t i = begin; i < end; ++i) {
      out[i - begin] = definitions_[i] == leaf_.max_definition ? indices_[value++] : -1;
    }
    return value;
  }

  void ReadLists(int64_t rows, ParquetCells* cells) {
    cells->offsets.reserve(rows + 1);
    cells->offsets.resize(1);
    cells->offsets[0] = 0;
    int64_t begun = 0;  // Rows whose first level was taken.
    for (;;) {
      if (position_ == decoded_) {
        // The end of the column chunk ends the last row, too.
        if (begun == rows && !reader_->HasNext()) break;
        decoded_ = Decode(kListLevels);
        position_ = value_ = 0;
      } else if (begun == 0) {
        Rebase();
      }
      while (position_ < decoded_) {
        if (repetitions_[position_] == 0) {
          if (begun == rows) return EndRow(cells);
          if (begun++ > 0) EndRow(cells);
        }
        const int16_t definition = definitions_[position_++];
        if (definition < leaf_.cell_definition) continue;  // A list without cells.
        cells->indices.push_back(definition == leaf_.max_definition ? indices_[value_++] : -1);
      }
    }
    EndRow(cells);
  }

  static void EndRow(ParquetCells* cells) {
    cells->offsets.push_back(static_cast<int32_t>(cells->indices.size()));
  }

  // The decoded values that no row has taken yet become the first of the new ones.
  void Rebase() {
    if (has_dictionary_) return;
    const int64_t left = decoded_values_ - value_;
    Append<DType>(values_.get() + value_, left, descriptor_, column_.kind, own_.get());
    std::iota(indices_.begin() + value_, indices_.begin() + decoded_values_, 0);
  }

  const std::shared_ptr<parquet::ColumnReader> reader_;
  parquet::TypedColumnReader<DType>* const typed_;
  const parquet::ColumnDescriptor& descriptor_;
  const Leaf leaf_;
  const ParquetColumn& column_;
  const bool has_dictionary_;
  std::shared_ptr<const ParquetValues> dictionary_;
  std::shared_ptr<ParquetValues> own_;  // Of this Read(), without a dictionary.

  // What was decoded last.
  std::vector<int16_t> definitions_, repetitions_;
  std::vector<int32_t> indices_;
  std::unique_ptr<Value[]> values_;
  int64_t decoded_values_ = 0;
  // Lists: levels that were decoded, and those that rows have taken.
  int64_t decoded_ = 0, position_ = 0, value_ = 0;
};

std::unique_ptr<LeafReader> MakeLeafReader(parquet::RowGroupReader* group, const Leaf& leaf,
                                           const ParquetColumn& column) {
  std::shared_ptr<parquet::ColumnReader> reader =
      group->ColumnWithExposeEncoding(leaf.column, parquet::ExposedEncoding::DICTIONARY);
  switch (reader->type()) {
#define THERMOCLINE_LEAF(type, dtype) \
  case parquet::Type::type:           \
    return std::make_unique<TypedLeafReader<parquet::dtype>>(std::move(reader), leaf, column)
    THERMOCLINE_LEAF(BOOLEAN, BooleanType);
    THERMOCLINE_LEAF(INT32, Int32Type);
    THERMOCLINE_LEAF(INT64, Int64Type);
    THERMOCLINE_LEAF(INT96, Int96Type);
    THERMOCLINE_LEAF(FLOAT, FloatType);
    THERMOCLINE_LEAF(DOUBLE, DoubleType);
    THERMOCLINE_LEAF(BYTE_ARRAY, ByteArrayType);
    THERMOCLINE_LEAF(FIXED_LEN_BYTE_ARRAY, FLBAType);
#undef THERMOCLINE_LEAF
    default:
      throw parquet::ParquetException("a column of an unknown type");
  }
}

// ---- the file

class ArrowParquetFile : public ParquetFile {
 public:
  ArrowParquetFile(std::string path, bool is_remote,
                   std::unique_ptr<parquet::ParquetFileReader> file)
      : path_(std::move(path)), is_remote_(is_remote), file_(std::move(file)) {
    const parquet::SchemaDescriptor& schema = *file_->metadata()->schema();
    for (int i = 0; i < schema.num_columns(); ++i) {
      leaves_.push_back(Leaf{i});
      columns_.push_back(DescribeLeaf(*schema.Column(i), &leaves_.back()));
    }
    for (int i = 0; i < file_->metadata()->num_row_groups(); ++i) {
      row_groups_.push_back(file_->metadata()->RowGroup(i)->num_rows());
    }
    rows_ = std::accumulate(row_groups_.begin(), row_groups_.end(), int64_t{0});
  }

  const std::vector<ParquetColumn>& columns() const override { return columns_; }
  const std::vector<int64_t>& row_group_rows() const override { return row_groups_; }
  int64_t rows() const override { return rows_; }

  absl::Status Seek(int64_t row, std::vector<int> columns) override {
    CHECK(row >= 0 && row <= rows_);
    selected_ = std::move(columns);
    readers_.clear();
    next_group_ = 0;
    left_ = 0;
    while (next_group_ < row_groups_.size() && row >= row_groups_[next_group_]) {
      row -= row_groups_[next_group_++];
    }
    std::vector<ParquetCells> passed;
    while (row > 0) {
      ASSIGN_OR_RETURN(const int64_t rows, Read(std::min(row, kPassedRows), &passed));
      row -= rows;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Read(int64_t rows, std::vector<ParquetCells>* cells) override {
    cells->clear();
    while (left_ == 0) {
      if (next_group_ == row_groups_.size()) return 0;
      RETURN_IF_ERROR(BeginGroup());
    }
    rows = std::min(rows, left_);
    cells->resize(selected_.size());
    for (size_t i = 0; i < selected_.size(); ++i) {
      try {
        readers_[i]->Read(rows, &(*cells)[i]);
      } catch (const std::exception& error) {
        return Damaged(columns_[selected_[i]].name, error.what());
      }
    }
    left_ -= rows;
    return rows;
  }

 private:
  // Rows before the wanted one that are read at a time.
  static constexpr int64_t kPassedRows = 16384;

  absl::Status Damaged(const std::string& column, absl::string_view what) const {
    return absl::DataLossError(
        absl::StrCat(path_, ": row group ", next_group_ - 1, ", column '", column, "': ", what));
  }

  absl::Status BeginGroup() {
    const size_t group = next_group_++;
    left_ = row_groups_[group];
    readers_.clear();
    size_t i = 0;
    try {
      if (is_remote_ && !selected_.empty()) {
        std::vector<int> leaves;
        for (const int column : selected_) leaves.push_back(leaves_[column].column);
        file_->PreBuffer({static_cast<int>(group)}, leaves, arrow::io::default_io_context(),
                         arrow::io::CacheOptions::LazyDefaults());
      }
      const std::shared_ptr<parquet::RowGroupReader> reader =
          file_->RowGroup(static_cast<int>(group));
      for (; i < selected_.size(); ++i) {
        readers_.push_back(
            MakeLeafReader(reader.get(), leaves_[selected_[i]], columns_[selected_[i]]));
      }
    } catch (const std::exception& error) {
      return Damaged(selected_.empty() ? "" : columns_[selected_[i]].name, error.what());
    }
    return absl::OkStatus();
  }

  const std::string path_;
  const bool is_remote_;
  const std::unique_ptr<parquet::ParquetFileReader> file_;
  std::vector<ParquetColumn> columns_;
  std::vector<Leaf> leaves_;  // Of columns_.
  std::vector<int64_t> row_groups_;
  int64_t rows_ = 0;

  std::vector<int> selected_;
  size_t next_group_ = 0;
  int64_t left_ = 0;  // Rows of the row group before.
  std::vector<std::unique_ptr<LeafReader>> readers_;
};

absl::StatusOr<std::shared_ptr<arrow::io::RandomAccessFile>> OpenFile(const std::string& path,
                                                                      ObjectStore* store) {
  if (IsObjectPath(path)) {
    CHECK(store != nullptr);
    return static_cast<ArrowObjectStore*>(store)->OpenFile(path);
  }
  auto file = arrow::io::ReadableFile::Open(path);
  if (!file.ok()) return FromArrow(path, file.status());
  return std::shared_ptr<arrow::io::RandomAccessFile>(*std::move(file));
}

}  // namespace

absl::Status RequireArrow(absl::string_view) { return absl::OkStatus(); }

absl::StatusOr<std::unique_ptr<ParquetFile>> ParquetFile::Open(const std::string& path,
                                                               ObjectStore* store) {
  ASSIGN_OR_RETURN(std::shared_ptr<arrow::io::RandomAccessFile> file, OpenFile(path, store));
  try {
    parquet::ReaderProperties properties;
    properties.enable_buffered_stream();
    properties.set_buffer_size(kReadBufferBytes);
    return std::make_unique<ArrowParquetFile>(
        path, IsObjectPath(path), parquet::ParquetFileReader::Open(std::move(file), properties));
  } catch (const parquet::ParquetStatusException& error) {
    return FromArrow(path, error.status());
  } catch (const std::exception& error) {
    return absl::DataLossError(
        absl::StrCat(path, ": is no Parquet file, or is damaged or cut short: ", error.what()));
  }
}

}  // namespace thermocline
