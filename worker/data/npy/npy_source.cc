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
absl::StatusOr<std::unique_ptr<MappedNpy>> OpenChecked(const std::string& path,
                                                       const std::vector<std::string>& dtypes,
                                                       int64_t columns) {
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
                   ", wanted ", absl::StrJoin(dtypes, " or ", name), " [rows, ", columns, "]"));
}

absl::Status CheckSameRows(const MappedNpy& a, const MappedNpy& b) {
  if (a.rows() == b.rows()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(a.path(), ": has ", a.rows(), " rows, but ", b.path(), " has ", b.rows()));
}

// Elements may have any address: a header's length is up to its writer.
template <typename T>
T Load(const uint8_t* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

double LabelAt(const MappedNpy& labels, int64_t row) {
  if (labels.header().dtype == "<f4") return Load<float>(labels.data(), row);
  if (labels.header().dtype == "<i8") return static_cast<double>(Load<int64_t>(labels.data(), row));
  return Load<int32_t>(labels.data(), row);
}

bool IsLabel(double label) { return label == 0 || label == 1; }

bool AllFinite(const uint8_t* values, int n) {
  // x - x is 0 for every finite x, NaN for all others.
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += Load<float>(values, i) - Load<float>(values, i);
  return sum == 0;
}

bool IsGoodRow(const NpyFiles& files, int num_dense, int64_t row) {
  return (files.labels == nullptr || IsLabel(LabelAt(*files.labels, row))) &&
         (num_dense == 0 ||
          AllFinite(files.dense->data() + row * num_dense * sizeof(float), num_dense));
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
    batch->labels.push_back(
        files.labels == nullptr ? NAN : static_cast<float>(LabelAt(*files.labels, row)));
  }
  int64_t column = 0;
  for (size_t f = 0; f < shape.features.size(); ++f) {
    const NpyFeature& feature = shape.features[f];
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
  for (const NpyFeature& feature : features) columns += feature.columns;
  return columns;
}

bool NpyFiles::AnyExists(const std::string& prefix) {
  for (const char* kind : {"dense", "sparse", "labels"}) {
    if (access(absl::StrCat(prefix, "_", kind, ".npy").c_str(), F_OK) == 0) return true;
  }
  return false;
}

absl::StatusOr<std::shared_ptr<const NpyFiles>> NpyFiles::Open(const std::string& prefix,
                                                               const NpyShape& shape,
                                                               bool needs_labels) {
  auto files = std::make_shared<NpyFiles>();
  const std::string labels = absl::StrCat(prefix, "_labels.npy");
  if (needs_labels || access(labels.c_str(), F_OK) == 0) {
    ASSIGN_OR_RETURN(files->labels, OpenChecked(labels, {"<i4", "<i8", "<f4"}, 1));
  }
  if (shape.num_dense > 0) {
    ASSIGN_OR_RETURN(files->dense,
                     OpenChecked(absl::StrCat(prefix, "_dense.npy"), {"<f4"}, shape.num_dense));
    if (files->labels != nullptr) RETURN_IF_ERROR(CheckSameRows(*files->dense, *files->labels));
  }
  if (!shape.features.empty()) {
    ASSIGN_OR_RETURN(files->sparse, OpenChecked(absl::StrCat(prefix, "_sparse.npy"),
                                                {"<i4", "<i8", "<u8"}, shape.sparse_columns()));
    const auto& other = files->labels != nullptr ? files->labels : files->dense;
    if (other != nullptr) RETURN_IF_ERROR(CheckSameRows(*files->sparse, *other));
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
  for (const auto* const npy : {&files_->dense, &files_->sparse, &files_->labels}) {
    if (pinned_ != nullptr && *npy != nullptr) RETURN_IF_ERROR(pinned_->Check((*npy)->path()));
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
  batch->labels.clear();
  batch->padding_ids = 0;
  batch->features.resize(shape_.features.size());
  for (FeatureLookups& feature : batch->features) {
    feature.keys.clear();
    feature.offsets.assign(1, 0);
  }
  int64_t good_from = first;  // Bad rows split the slice into runs of good ones.
  for (int64_t row = first; row < last; ++row) {
    if (IsGoodRow(*files_, shape_.num_dense, row)) continue;
    bad_rows->push_back(row - raw.first_row);
    AppendRows(*files_, shape_, good_from, row, batch);
    good_from = row + 1;
  }
  AppendRows(*files_, shape_, good_from, last, batch);
  return absl::OkStatus();
}

absl::Status NpySource::DescribeBadRow(const RawBatch& raw, int64_t row) {
  const int64_t file_row = raw.first_row + row;
  const double label = files_->labels == nullptr ? 0 : LabelAt(*files_->labels, file_row);
  if (!IsLabel(label)) {
    return absl::InvalidArgumentError(absl::StrCat(files_->labels->path(), ": row ", file_row,
                                                   ": label ", label, " is not 0 or 1"));
  }
  for (int c = 0; c < shape_.num_dense; ++c) {
    const float value = Load<float>(files_->dense->data(), file_row * shape_.num_dense + c);
    if (std::isfinite(value)) continue;
    return absl::InvalidArgumentError(absl::StrCat(files_->dense->path(), ": row ", file_row,
                                                   ", column ", c, ": ", value, " is not finite"));
  }
  return absl::InternalError(absl::StrCat("row ", file_row, " is good"));
}

std::string NpySource::PlaceOf(const RawBatch& raw, int64_t row) {
  const MappedNpy* const file = files_->sparse != nullptr  ? files_->sparse.get()
                                : files_->dense != nullptr ? files_->dense.get()
                                                           : files_->labels.get();
  return absl::StrCat(file->path(), ": row ", raw.first_row + row);
}

}  // namespace thermocline
