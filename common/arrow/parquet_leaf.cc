#include "common/arrow/parquet_leaf.h"

#include <parquet/column_reader.h>
#include <parquet/exception.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace thermocline {
namespace {

using Kind = ParquetColumn::Kind;

// Levels of a list column that are decoded at a time: what is read beyond the last row stays.
constexpr int64_t kListLevels = 4096;

// ---- the schema

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

// Sets the kind of a leaf's values. A type without a text of its own stays kUnsupported.
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

// The outermost map that `node` is a part of; null: none.
const parquet::schema::Node* MapAround(const parquet::schema::Node* node) {
  const parquet::schema::Node* map = nullptr;
  for (; node->parent() != nullptr; node = node->parent()) {
    if (node->logical_type() != nullptr && node->logical_type()->is_map()) map = node;
  }
  return map;
}

// The name of the outermost list that `node` is a part of. REQUIRES: there is one
std::string NameOfOutermostList(const parquet::schema::Node* node) {
  const parquet::schema::Node* list = node;
  for (; node->parent() != nullptr; node = node->parent()) {
    if (node->is_repeated()) list = node;
  }
  return NameOf(list->parent()->parent() == nullptr ? list : list->parent());
}

// ---- values

template <typename T>
void Extend(size_t count, UninitializedVector<T>* vector) {
  const size_t wanted = vector->size() + count;
  if (wanted > vector->capacity()) vector->reserve(std::max(wanted, 2 * vector->capacity()));
  vector->resize(wanted);
}

// Most texts of logs are short: two moves, which may overlap, copy 8 to 16 bytes.
inline void CopyText(const void* from, size_t bytes, char* to) {
  if (bytes >= 8 && bytes <= 16) {
    uint64_t first, last;
    std::memcpy(&first, from, 8);
    std::memcpy(&last, static_cast<const char*>(from) + bytes - 8, 8);
    std::memcpy(to, &first, 8);
    std::memcpy(to + bytes - 8, &last, 8);
  } else if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

// Adds `count` texts, the i-th of size(i) bytes at data(i).
template <typename Data, typename Size>
void AppendTexts(size_t count, const Data& data, const Size& size, ParquetValues* values) {
  size_t end = values->bytes.size();
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes += size(i);
  Extend(bytes, &values->bytes);
  Extend(count, &values->ends);
  uint64_t* const ends = values->ends.data() + values->ends.size() - count;
  char* const out = values->bytes.data();
  for (size_t i = 0; i < count; ++i) {
    CopyText(data(i), size(i), out + end);
    ends[i] = end += size(i);
  }
}

// Adds `count` values as the file has them.
template <typename DType>
void Append(const typename DType::c_type* in, size_t count, const parquet::ColumnDescriptor& leaf,
            Kind kind, ParquetValues* values) {
  values->size += count;
  if constexpr (std::is_same_v<DType, parquet::ByteArrayType>) {
    AppendTexts(
        count, [in](size_t i) { return in[i].ptr; }, [in](size_t i) -> size_t { return in[i].len; },
        values);
  } else if constexpr (std::is_same_v<DType, parquet::FLBAType>) {
    const size_t size = leaf.type_length();
    AppendTexts(
        count, [in](size_t i) { return in[i].ptr; }, [size](size_t) { return size; }, values);
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

template <typename DType>
class TypedLeafReader : public LeafReader {
 public:
  TypedLeafReader(std::shared_ptr<parquet::ColumnReader> reader, const ParquetLeaf& leaf,
                  const ParquetColumn& column, int64_t max_list_values)
      : reader_(std::move(reader)),
        typed_(static_cast<parquet::TypedColumnReader<DType>*>(reader_.get())),
        descriptor_(*reader_->descr()),
        leaf_(leaf),
        column_(column),
        max_list_values_(static_cast<size_t>(max_list_values)),
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

  // Decodes up to `count` levels and their values, those of one page at most. indices_ then has the
  // index of each value in cells->values.
  int64_t Decode(int64_t count) {
    if (static_cast<int64_t>(definitions_.size()) < count) {
      definitions_.resize(count);
      repetitions_.resize(count);
      indices_.resize(count);
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
      levels = DecodeValues(count, definitions, repetitions, &values);
    }
    if (levels == 0) throw parquet::ParquetException("the column ends before the row group does");
    decoded_values_ = values;
    return levels;
  }

  // The same without a dictionary: the values go to own_.
  int64_t DecodeValues(int64_t count, int16_t* definitions, int16_t* repetitions, int64_t* values) {
    constexpr bool kIsInteger = std::is_same_v<DType, parquet::Int64Type>;
    if constexpr (kIsInteger || std::is_same_v<DType, parquet::DoubleType>) {
      if (!column_.is_list) {  // Arrow reads the values right into own_.
        auto* const out = [this] {
          if constexpr (kIsInteger) return &own_->integers;
          if constexpr (!kIsInteger) return &own_->reals;
        }();
        const size_t before = out->size();
        Extend(count, out);
        const int64_t levels =
            typed_->ReadBatch(count, definitions, nullptr, out->data() + before, values);
        out->resize(before + *values);
        own_->size += *values;
        return levels;
      }
    }
    if (values_ == nullptr || values_size_ < count) {
      values_ = std::make_unique<Value[]>(count);
      values_size_ = count;
    }
    const int64_t levels =
        typed_->ReadBatch(count, definitions, repetitions, values_.get(), values);
    Append<DType>(values_.get(), *values, descriptor_, column_.kind, own_.get());
    if (column_.is_list) NumberValues(*values);
    return levels;
  }

  // Sets indices_ to the indices of the last `count` values of own_.
  void NumberValues(int64_t count) {
    std::iota(indices_.begin(), indices_.begin() + count,
              static_cast<int32_t>(static_cast<int64_t>(own_->size) - count));
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
      // The first null: the cells before have no indices.
      if (!has_indices && decoded_values_ < levels) {
        cells->indices.resize(row);
        std::iota(cells->indices.begin(), cells->indices.end(), 0);
        has_indices = true;
      }
      if (has_indices) {
        if (!has_dictionary_) NumberValues(decoded_values_);
        AppendCells(levels, &cells->indices);
      }
      row += levels;
    }
  }

  // Adds the cells of the decoded levels of a column without lists.
  void AppendCells(int64_t levels, UninitializedVector<int32_t>* cells) const {
    Extend(levels, cells);
    int32_t* const out = cells->data() + cells->size() - levels;
    if (decoded_values_ == levels) {
      std::copy(indices_.begin(), indices_.begin() + levels, out);
      return;
    }
    const int32_t* value = indices_.data();
    for (int64_t i = 0; i < levels; ++i) {
      out[i] = definitions_[i] == leaf_.max_definition ? *value++ : -1;
    }
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
        if (cells->indices.size() == max_list_values_) throw ListsTooLong(begun - 1);
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
  const ParquetLeaf leaf_;
  const ParquetColumn& column_;
  const size_t max_list_values_;
  const bool has_dictionary_;
  std::shared_ptr<const ParquetValues> dictionary_;
  std::shared_ptr<ParquetValues> own_;  // The values of this Read(), if there is no dictionary.

  // The levels and values that were decoded last.
  std::vector<int16_t> definitions_, repetitions_;
  std::vector<int32_t> indices_;
  std::unique_ptr<Value[]> values_;
  int64_t values_size_ = 0;
  int64_t decoded_values_ = 0;
  // For lists: how many levels were decoded, and how many levels and values rows have taken.
  int64_t decoded_ = 0, position_ = 0, value_ = 0;
};

}  // namespace

ParquetColumn DescribeLeaf(const parquet::ColumnDescriptor& descriptor, ParquetLeaf* leaf) {
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
  const parquet::schema::Node* const map = MapAround(node);
  // A list of groups has a leaf for each of their fields.
  const bool is_plain = element == node || element->parent() == node;
  const bool has_fields =
      node->is_group() && static_cast<const parquet::schema::GroupNode*>(node)->field_count() > 1;
  column.name = is_list && is_plain && !has_fields
                    ? NameOf(parent)
                    : NameOf(is_plain && !has_fields ? node : element);
  const char* const of = !is_plain || has_fields ? "groups with " : repeats > 1 ? "lists of " : "";
  column.type = map != nullptr ? "map" : absl::StrCat("list of ", of, column.type);
  if (repeats > 1) column.name = NameOfOutermostList(node);
  if (map != nullptr) column.name = NameOf(map);  // A map's keys and values have its name.
  if (*of != '\0' || map != nullptr || repeats > 1) column.kind = Kind::kUnsupported;
  return column;
}

std::unique_ptr<LeafReader> MakeLeafReader(parquet::RowGroupReader* group, const ParquetLeaf& leaf,
                                           const ParquetColumn& column, int64_t max_list_values) {
  std::shared_ptr<parquet::ColumnReader> reader =
      group->ColumnWithExposeEncoding(leaf.column, parquet::ExposedEncoding::DICTIONARY);
  switch (reader->type()) {
#define THERMOCLINE_LEAF(type, dtype)                                                         \
  case parquet::Type::type:                                                                   \
    return std::make_unique<TypedLeafReader<parquet::dtype>>(std::move(reader), leaf, column, \
                                                             max_list_values)
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

}  // namespace thermocline
