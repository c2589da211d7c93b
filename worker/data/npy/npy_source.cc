#include "worker/data/npy/npy_source.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// Maps a file and checks its dtype and the shape of its rows.
//   columns: the wanted shape[1]; where it is 1, shape[1] may be missing
//   wanted: how an error says the shape; "": as [rows, columns]
absl::StatusOr<std::unique_ptr<MappedNpy>> OpenChecked(const std::string& path,
                                                       const std::vector<std::string>& dtypes,
                                                       int64_t columns,
                                                       const std::string& wanted = "") {
  ASSIGN_OR_RETURN(std::unique_ptr<MappedNpy> npy, MappedNpy::Open(path));
  const NpyHeader& header = npy->header();
  const bool dtype_fits = std::find(dtypes.begin(), dtypes.end(), header.dtype) != dtypes.end();
  const bool shape_fits = (header.shape.size() == 2 && header.shape[1] == columns) ||
                          (header.shape.size() == 1 && columns == 1);
  if (dtype_fits && shape_fits) return npy;
  const auto name = [](std::string* out, const std::string& dtype) {
    absl::StrAppend(out, NpyDtypeName(dtype));
  };
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": is ", NpyDtypeName(header.dtype), " ", NpyShapeName(header.shape),
                   ", wanted ", absl::StrJoin(dtypes, " or ", name), " ",
                   wanted.empty() ? absl::StrCat("[rows, ", columns, "]") : wanted));
}

absl::Status CheckSameRows(const MappedNpy& a, const MappedNpy& b) {
  if (a.rows() == b.rows()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(a.path(), ": has ", a.rows(), " rows, but ", b.path(), " has ", b.rows()));
}

// prefix: what the names of the list's files begin with
absl::StatusOr<NpyList> OpenList(const std::string& prefix) {
  NpyList list;
  ASSIGN_OR_RETURN(list.offsets, OpenChecked(absl::StrCat(prefix, "_offsets.npy"), {"<i4", "<i8"},
                                             1, "[rows + 1]"));
  if (list.offsets->rows() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(list.offsets->path(), ": has no offsets, wanted 1 more than rows"));
  }
  ASSIGN_OR_RETURN(list.values, OpenChecked(absl::StrCat(prefix, "_values.npy"),
                                            {"<i4", "<i8", "<u8"}, 1, "[values]"));
  return list;
}

// Elements may have any address: a header's length is up to its writer.
template <typename T>
T Load(const uint8_t* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

double LabelAt(const MappedNpy& labels, int64_t at) {
  if (labels.header().dtype == "<f4") return Load<float>(labels.data(), at);
  if (labels.header().dtype == "<i8") return static_cast<double>(Load<int64_t>(labels.data(), at));
  return Load<int32_t>(labels.data(), at);
}

bool IsLabel(double label) { return label == 0 || label == 1; }

// Returns the column of the row's first label that is none; -1: all are good. Where all are
// missing, it is the number of columns.
int FindBadLabel(const NpyFiles& files, const NpyShape& shape, int64_t row) {
  if (files.labels == nullptr || !shape.needs_labels) return -1;
  const int columns = static_cast<int>(shape.labels.size());
  int missing = 0;
  for (int c = 0; c < columns; ++c) {
    const double label = LabelAt(*files.labels, row * columns + c);
    if (IsLabel(label)) continue;
    if (!std::isnan(label) || !shape.labels_may_be_missing) return c;
    ++missing;
  }
  return missing == columns ? columns : -1;
}

bool AllFinite(const uint8_t* values, int n) {
  // x - x is 0 for every finite x, NaN for all others.
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += Load<float>(values, i) - Load<float>(values, i);
  return sum == 0;
}

int64_t OffsetAt(const MappedNpy& offsets, int64_t row) {
  return offsets.header().dtype == "<i8" ? Load<int64_t>(offsets.data(), row)
                                         : Load<int32_t>(offsets.data(), row);
}

// The values of a list in one row.
struct ListRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

ListRange RangeAt(const NpyList& list, int64_t row) {
  return {OffsetAt(*list.offsets, row), OffsetAt(*list.offsets, row + 1)};
}

// Rows are looked at when they are read.
absl::Status CheckOffsets(const NpyList& list, int64_t rows) {
  const std::string& path = list.offsets->path();
  if (list.offsets->rows() != rows + 1) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has ", list.offsets->rows(),
                                                   " offsets, wanted ", rows + 1, " for ", rows,
                                                   " rows"));
  }
  const int64_t first = OffsetAt(*list.offsets, 0), last = OffsetAt(*list.offsets, rows);
  if (first == 0 && last == list.values->rows()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": goes from ", first, " to ", last,
                                                 ", wanted from 0 to ", list.values->rows(),
                                                 ", the values of ", list.values->path()));
}

bool IsGood(const ListRange& range, const NpyList& list) {
  return 0 <= range.begin && range.begin <= range.end && range.end <= list.values->rows();
}

StepLists::Mismatch FindMismatch(const NpyFiles& files, const NpyShape& shape, int64_t row) {
  return shape.step_lists.FindMismatch(
      [&](int feature) { return RangeAt(files.lists[feature], row).size(); });
}

bool HasGoodLists(const NpyFiles& files, const NpyShape& shape, int64_t row) {
  for (const NpyList& list : files.lists) {
    if (list.offsets != nullptr && !IsGood(RangeAt(list, row), list)) return false;
  }
  return FindMismatch(files, shape, row).first < 0;
}

bool IsGoodRow(const NpyFiles& files, const NpyShape& shape, int64_t row) {
  const int num_dense = shape.num_dense;
  return FindBadLabel(files, shape, row) < 0 &&
         (num_dense == 0 ||
          AllFinite(files.dense->data() + row * num_dense * sizeof(float), num_dense)) &&
         HasGoodLists(files, shape, row);
}

// The columns of one feature in rows [first, last) of a sparse file.
struct FeatureCells {
  const uint8_t* data;
  int64_t row_columns;
  int64_t first_column;
  int columns;
  int64_t first, last;

  int64_t size() const { return (last - first) * columns; }
};

// Appends the bags of these rows, without the keys for which is_padding(key) is true. Returns how
// many of those there are.
template <typename Id, typename IsPadding>
int64_t AppendBags(const FeatureCells& cells, const IsPadding& is_padding,
                   FeatureLookups* feature) {
  const auto begin = static_cast<int32_t>(feature->keys.size());
  feature->keys.resize(begin + cells.size());
  Key* const keys = feature->keys.data();
  int32_t n = begin;
  for (int64_t row = cells.first; row < cells.last; ++row) {
    const int64_t at = row * cells.row_columns + cells.first_column;
    for (int c = 0; c < cells.columns; ++c) {
      keys[n] = static_cast<Key>(Load<Id>(cells.data, at + c));  // sign-extended
      n += !is_padding(keys[n]);
    }
    feature->offsets.push_back(n);
  }
  feature->keys.resize(n);
  return begin + cells.size() - n;
}

template <typename Id>
int64_t AppendFeature(const FeatureCells& cells, const NpyFeature& spec, FeatureLookups* feature) {
  switch (spec.padding) {
    case NpyFeature::Padding::kNegative:
      // No id of an unsigned file is negative.
      if (!std::is_signed_v<Id>) break;
      return AppendBags<Id>(
          cells, [](Key key) { return static_cast<int64_t>(key) < 0; }, feature);
    case NpyFeature::Padding::kOneId:
      return AppendBags<Id>(
          cells, [padding = spec.padding_key](Key key) { return key == padding; }, feature);
    case NpyFeature::Padding::kNone:
      break;
  }
  return AppendBags<Id>(
      cells, [](Key) { return false; }, feature);
}

int64_t AppendFeature(const NpyHeader& header, const FeatureCells& cells, const NpyFeature& spec,
                      FeatureLookups* feature) {
  if (header.dtype == "<u8") return AppendFeature<uint64_t>(cells, spec, feature);
  if (header.dtype == "<i8") return AppendFeature<int64_t>(cells, spec, feature);
  return AppendFeature<int32_t>(cells, spec, feature);
}

template <typename Id>
void AppendListValues(const uint8_t* values, int64_t begin, int64_t end, FeatureLookups* feature) {
  const size_t at = feature->keys.size();
  feature->keys.resize(at + (end - begin));
  for (int64_t i = begin; i < end; ++i) {
    feature->keys[at + (i - begin)] = static_cast<Key>(Load<Id>(values, i));
  }
}

void AppendList(const NpyList& list, const NpyFeature& spec, int64_t first, int64_t last,
                FeatureLookups* feature) {
  const std::string& dtype = list.values->header().dtype;
  const uint8_t* const values = list.values->data();
  for (int64_t row = first; row < last; ++row) {
    auto [begin, end] = RangeAt(list, row);
    if (end - begin > spec.max_length) {
      spec.keeps_first ? end = begin + spec.max_length : begin = end - spec.max_length;
    }
    if (dtype == "<u8") {
      AppendListValues<uint64_t>(values, begin, end, feature);
    } else if (dtype == "<i8") {
      AppendListValues<int64_t>(values, begin, end, feature);
    } else {
      AppendListValues<int32_t>(values, begin, end, feature);
    }
    feature->offsets.push_back(static_cast<int32_t>(feature->keys.size()));
  }
}

void AppendLabels(const NpyFiles& files, const NpyShape& shape, int64_t row, Batch* batch) {
  const size_t at = batch->labels.size();
  batch->labels.resize(at + shape.num_tasks, shape.needs_labels ? 0.0f : NAN);
  if (shape.labels_may_be_missing) batch->weights.resize(at + shape.num_tasks, 1.0f);
  const auto columns = static_cast<int64_t>(shape.labels.size());
  for (int64_t c = 0; c < columns && files.labels != nullptr; ++c) {
    if (shape.labels[c] < 0) continue;
    const double label = LabelAt(*files.labels, row * columns + c);
    if (IsLabel(label)) {
      batch->labels[at + shape.labels[c]] = static_cast<float>(label);
    } else if (shape.labels_may_be_missing) {
      batch->weights[at + shape.labels[c]] = 0;
    }
  }
}

// Appends rows [first, last) of the files, all good.
void AppendRows(const NpyFiles& files, const NpyShape& shape, int64_t first, int64_t last,
                Batch* batch) {
  const int stride = batch->dense_stride;
  const size_t row_bytes = shape.num_dense * sizeof(float);
  batch->dense.resize((batch->size + (last - first)) * stride);
  float* dense = batch->dense.data() + static_cast<size_t>(batch->size) * stride;
  for (int64_t row = first; row < last; ++row, dense += stride) {
    if (row_bytes > 0) std::memcpy(dense, files.dense->data() + row * row_bytes, row_bytes);
    std::fill(dense + shape.num_dense, dense + stride, 0.0f);
    AppendLabels(files, shape, row, batch);
  }
  int64_t column = 0;
  for (size_t f = 0; f < shape.features.size(); ++f) {
    const NpyFeature& feature = shape.features[f];
    if (!feature.list.empty()) {
      AppendList(files.lists[f], feature, first, last, &batch->features[f]);
      continue;
    }
    const FeatureCells cells = {
        files.sparse->data(), shape.sparse_columns(), column, feature.columns, first, last};
    batch->padding_ids +=
        AppendFeature(files.sparse->header(), cells, feature, &batch->features[f]);
    column += feature.columns;
  }
  batch->size += static_cast<int>(last - first);
}

}  // namespace

int NpyShape::sparse_columns() const {
  int columns = 0;
  for (const NpyFeature& feature : features) columns += feature.list.empty() ? feature.columns : 0;
  return columns;
}

std::vector<const MappedNpy*> NpyFiles::all() const {
  std::vector<const MappedNpy*> files;
  for (const auto* const file : {&sparse, &dense, &labels}) {
    if (*file != nullptr) files.push_back(file->get());
  }
  for (const NpyList& list : lists) {
    if (list.offsets != nullptr) files.insert(files.end(), {list.offsets.get(), list.values.get()});
  }
  return files;
}

int64_t NpyFiles::rows() const {
  for (const auto* const file : {&labels, &dense, &sparse}) {
    if (*file != nullptr) return (*file)->rows();
  }
  return all()[0]->rows() - 1;  // Lists alone.
}

bool NpyFiles::AnyExists(const std::string& prefix, const std::vector<std::string>& parts) {
  return std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
    return access(absl::StrCat(prefix, "_", part, ".npy").c_str(), F_OK) == 0;
  });
}

absl::StatusOr<std::shared_ptr<const NpyFiles>> NpyFiles::Open(const std::string& prefix,
                                                               const NpyShape& shape) {
  auto files = std::make_shared<NpyFiles>();
  const std::string labels = absl::StrCat(prefix, "_labels.npy");
  if (shape.needs_labels || access(labels.c_str(), F_OK) == 0) {
    ASSIGN_OR_RETURN(files->labels, OpenChecked(labels, {"<i4", "<i8", "<f4"},
                                                static_cast<int64_t>(shape.labels.size())));
  }
  if (shape.num_dense > 0) {
    ASSIGN_OR_RETURN(files->dense,
                     OpenChecked(absl::StrCat(prefix, "_dense.npy"), {"<f4"}, shape.num_dense));
    if (files->labels != nullptr) RETURN_IF_ERROR(CheckSameRows(*files->dense, *files->labels));
  }
  if (shape.sparse_columns() > 0) {
    ASSIGN_OR_RETURN(files->sparse, OpenChecked(absl::StrCat(prefix, "_sparse.npy"),
                                                {"<i4", "<i8", "<u8"}, shape.sparse_columns()));
    const auto& other = files->labels != nullptr ? files->labels : files->dense;
    if (other != nullptr) RETURN_IF_ERROR(CheckSameRows(*files->sparse, *other));
  }
  files->lists.resize(shape.features.size());
  for (size_t f = 0; f < shape.features.size(); ++f) {
    const std::string& name = shape.features[f].list;
    if (name.empty()) continue;
    ASSIGN_OR_RETURN(files->lists[f], OpenList(absl::StrCat(prefix, "_", name)));
    RETURN_IF_ERROR(CheckOffsets(files->lists[f], files->rows()));
  }
  return files;
}

NpySource::NpySource(std::shared_ptr<const NpyFiles> files, const NpyShape& shape, int64_t begin,
                     int64_t end, std::shared_ptr<PinnedFiles> pinned)
    : files_(std::move(files)),
      shape_(shape),
      begin_(begin),
      end_(end),
      pinned_(std::move(pinned)),
      next_row_(begin) {
  CHECK_GE(begin_, 0);
  CHECK_LE(begin_, end_);
  CHECK_LE(end_, files_->rows());
}

absl::Status NpySource::Rewind(uint32_t) {
  next_row_ = begin_;
  return absl::OkStatus();
}

absl::StatusOr<bool> NpySource::Read(int64_t batch_size, RawBatch* raw) {
  if (cancelled_.load(std::memory_order_relaxed)) {
    return absl::CancelledError("reading was cancelled");
  }
  for (const MappedNpy* const npy : files_->all()) {
    if (pinned_ != nullptr) RETURN_IF_ERROR(pinned_->Check(npy->path()));
  }
  raw->first_row = next_row_;
  raw->num_rows = std::min(batch_size, end_ - next_row_);
  if (raw->num_rows == 0) return false;
  next_row_ += raw->num_rows;
  raw->pass_progress = static_cast<double>(next_row_ - begin_) / (end_ - begin_);
  return true;
}

absl::StatusOr<int64_t> NpySource::Skip(int64_t rows) {
  const int64_t skipped = std::min(rows, end_ - next_row_);
  next_row_ += skipped;
  return skipped;
}

absl::Status NpySource::Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>* bad_rows) {
  const int64_t first = raw.first_row + raw.slice_begin;
  const int64_t last = raw.first_row + raw.slice_end;
  batch->size = 0;
  batch->num_dense = shape_.num_dense;
  batch->dense_stride = PaddedDenseColumns(shape_.num_dense);
  batch->num_tasks = shape_.num_tasks;
  batch->labels.clear();
  batch->weights.clear();
  batch->padding_ids = 0;
  batch->features.resize(shape_.features.size());
  for (FeatureLookups& feature : batch->features) {
    feature.keys.clear();
    feature.offsets.assign(1, 0);
  }
  int64_t good_from = first;  // Bad rows split the slice into runs of good ones.
  for (int64_t row = first; row < last; ++row) {
    if (IsGoodRow(*files_, shape_, row)) continue;
    bad_rows->push_back(row - raw.first_row);
    AppendRows(*files_, shape_, good_from, row, batch);
    good_from = row + 1;
  }
  AppendRows(*files_, shape_, good_from, last, batch);
  return absl::OkStatus();
}

absl::Status NpySource::DescribeBadRow(const RawBatch& raw, int64_t row) {
  const int64_t file_row = raw.first_row + row;
  const auto columns = static_cast<int>(shape_.labels.size());
  const int bad_label = FindBadLabel(*files_, shape_, file_row);
  if (bad_label >= 0) {
    const std::string wrong =
        bad_label == columns
            ? "no label is there"
            : absl::StrCat("label ", LabelAt(*files_->labels, file_row * columns + bad_label),
                           " is not 0 or 1");
    return absl::InvalidArgumentError(
        absl::StrCat(files_->labels->path(), ": row ", file_row,
                     columns > 1 && bad_label < columns ? absl::StrCat(", column ", bad_label) : "",
                     ": ", wrong));
  }
  for (int c = 0; c < shape_.num_dense; ++c) {
    const float value = Load<float>(files_->dense->data(), file_row * shape_.num_dense + c);
    if (std::isfinite(value)) continue;
    return absl::InvalidArgumentError(absl::StrCat(files_->dense->path(), ": row ", file_row,
                                                   ", column ", c, ": ", value, " is not finite"));
  }
  for (const NpyList& list : files_->lists) {
    if (list.offsets == nullptr || IsGood(RangeAt(list, file_row), list)) continue;
    const ListRange range = RangeAt(list, file_row);
    return absl::InvalidArgumentError(
        absl::StrCat(list.offsets->path(), ": row ", file_row, ": the list goes from ", range.begin,
                     " to ", range.end, ", and there are ", list.values->rows(), " values"));
  }
  const StepLists::Mismatch mismatch = FindMismatch(*files_, shape_, file_row);
  if (mismatch.first < 0) {
    return absl::InternalError(absl::StrCat("row ", file_row, " is good"));
  }
  const NpyList& first = files_->lists[mismatch.first];
  const NpyList& second = files_->lists[mismatch.second];
  return absl::InvalidArgumentError(absl::StrCat(
      first.offsets->path(), ": row ", file_row, ": ",
      StepLists::Describe(mismatch, absl::StrCat("'", shape_.features[mismatch.first].list, "'"),
                          RangeAt(first, file_row).size(),
                          absl::StrCat("'", shape_.features[mismatch.second].list, "'"),
                          RangeAt(second, file_row).size())));
}

std::string NpySource::PlaceOf(const RawBatch& raw, int64_t row) {
  return absl::StrCat(files_->all()[0]->path(), ": row ", raw.first_row + row);
}

}  // namespace thermocline
