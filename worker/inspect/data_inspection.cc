#include "worker/inspect/data_inspection.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/arrow/object_store.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/data/data_identity.h"
#include "common/disk/file_list.h"
#include "common/disk/npy.h"
#include "worker/data/data_files.h"
#include "worker/data/npy/npy_source.h"
#include "worker/data/row_stream.h"
#include "worker/data/text/text_parser.h"
#include "worker/inspect/column_scan.h"
#include "worker/inspect/flag_pairs.h"
#include "worker/inspect/parquet_inspection.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// Keys that are counted over all columns, each about 20 to 40 bytes.
constexpr size_t kMaxKeys = size_t{1} << 22;
constexpr int64_t kRowsAtATime = 1024;
constexpr int64_t kRowsOfCell = 64;  // A thread divides so many rows into columns at a time.

Json ColumnFigures(const std::vector<ColumnScan>& scans) {
  Json columns = Json::array();
  for (const ColumnScan& scan : scans) columns.push_back(scan.Figures());
  return columns;
}

uint64_t BytesOf(const std::vector<std::string>& files, ObjectStore* store = nullptr) {
  uint64_t bytes = 0;
  for (const std::string& file : files) {
    if (IsObjectPath(file)) {
      const auto object = store->OpenStream(file);
      if (object.ok()) bytes += static_cast<uint64_t>((*object)->size());
      continue;
    }
    std::error_code error;
    const uint64_t size = std::filesystem::file_size(file, error);
    if (!error) bytes += size;
  }
  return bytes;
}

// ---- text

class TextInspection {
 public:
  TextInspection(std::vector<std::string> files, std::shared_ptr<ObjectStore> store,
                 TextLayout layout, const InspectionOptions& options)
      : layout_(std::move(layout)), max_rows_(options.max_rows), threads_(options.threads) {
    files_.paths = std::move(files);
    files_.store = std::move(store);
    files_.format = layout_.format;
    if (layout_.has_header) files_.header = layout_.columns;
    const size_t keys = KeysOfColumn(kMaxKeys, layout_.columns.size());
    for (size_t c = 0; c < layout_.columns.size(); ++c) {
      scans_.emplace_back(layout_.columns[c], layout_.separators[c], keys);
      scans_.back().Count(options.counted);
    }
    ColumnNames names{layout_.columns, ""};
    if (!layout_.is_criteo) AddFolderKeys(&files_, &names);
    for (size_t c = layout_.columns.size(); c < names.names.size(); ++c) {
      scans_.emplace_back(names.names[c], '\0', keys);
    }
    names_ = std::move(names.names);
    flags_.emplace(names_.size());
  }

  absl::StatusOr<Json> Run(const OnInspected& on_inspected) {
    const std::atomic<bool> never{false};
    RowStream rows(std::make_shared<TextFiles>(files_), {}, &never);
    RETURN_IF_ERROR(rows.Rewind());
    RawBatch current, next;
    RETURN_IF_ERROR(ReadRows(&rows, &current));
    while (current.num_rows > 0) {
      SplitRows(current);
      absl::Status read;
      // One thread reads on, while the others take the columns.
      threads_.ParallelFor(1 + static_cast<int64_t>(scans_.size()), [&](int64_t cell, int) {
        if (cell == 0) {
          read = ReadRows(&rows, &next);
        } else {
          AddColumn(current, static_cast<size_t>(cell) - 1);
        }
      });
      RETURN_IF_ERROR(read);
      flags_->EndBlock();
      if (on_inspected) on_inspected(rows_, rows.progress());
      std::swap(current, next);
    }
    if (rows_ == malformed_) {
      return absl::InvalidArgumentError(absl::StrCat(files_.paths[0], ": there is no row",
                                                     layout_.has_header ? " after the header" : "",
                                                     malformed_ > 0 ? " in one form" : ""));
    }
    return Figures();
  }

 private:
  // Reads the next rows; none at the end, or after max_rows_.
  absl::Status ReadRows(RowStream* rows, RawBatch* raw) {
    raw->ClearText();
    if (is_complete_) return absl::OkStatus();
    const int64_t left = max_rows_ == 0 ? kRowsAtATime : max_rows_ - rows_read_;
    const int64_t wanted = std::min(kRowsAtATime, left);
    ASSIGN_OR_RETURN(const int64_t got, rows->Append(std::max<int64_t>(wanted, 1), raw));
    is_complete_ = got < std::max<int64_t>(wanted, 1);
    if (wanted == 0) raw->ClearText();  // It only looked whether there are more rows.
    rows_read_ += raw->num_rows;
    return absl::OkStatus();
  }

  // Divides all rows into columns, and counts the malformed ones.
  void SplitRows(const RawBatch& raw) {
    lines_.resize(std::max<size_t>(lines_.size(), raw.num_rows));
    num_lines_ = raw.num_rows;
    threads_.ParallelFor((num_lines_ + kRowsOfCell - 1) / kRowsOfCell, [&](int64_t cell, int) {
      const int64_t end = std::min((cell + 1) * kRowsOfCell, num_lines_);
      for (int64_t row = cell * kRowsOfCell; row < end; ++row) {
        SplitLine(WithoutLineEnd(raw.TextOf(row)), layout_.format, &lines_[row]);
      }
    });
    for (int64_t row = 0; row < num_lines_; ++row) {
      LineColumns& line = lines_[row];
      if (IsHeader(line)) {
        line.columns = {};
        ++headers_;
        continue;
      }
      ++rows_;
      if (!IsMalformed(line) || malformed_++ > 0) continue;
      const RawBatch::Origin origin = raw.OriginOf(row);
      first_malformed_ = absl::StrCat(
          files_.paths[origin.file], ":", origin.line, ": ",
          line.misquoted >= 0
              ? absl::StrCat("column ", line.misquoted + 1,
                             " begins with a quote that is not closed at its end")
              : absl::StrCat(line.columns.size(), " columns, not ", layout_.columns.size()));
    }
  }

  bool IsMalformed(const LineColumns& line) const {
    return line.misquoted >= 0 || line.columns.size() != layout_.columns.size();
  }

  // Whether a line is the header again, as in files that were joined.
  bool IsHeader(const LineColumns& line) const {
    if (!layout_.has_header || IsMalformed(line)) return false;
    absl::string_view first = line.columns[0];
    absl::ConsumePrefix(&first, kByteOrderMark);
    return first == layout_.columns[0] &&
           std::equal(line.columns.begin() + 1, line.columns.end(), layout_.columns.begin() + 1);
  }

  // Adds the column's values of all rows, in their order. Columns behind those of the files are the
  // keys of their folders.
  void AddColumn(const RawBatch& raw, size_t column) {
    for (int64_t row = 0; row < num_lines_; ++row) {
      const LineColumns& line = lines_[row];
      if (IsMalformed(line)) continue;
      const absl::string_view text =
          column < line.columns.size()
              ? line.columns[column]
              : files_.keys[raw.OriginOf(row).file][column - line.columns.size()];
      scans_[column].AddText(text);
      flags_->Add(column, text);
    }
  }

  Json Figures() const {
    Json json;
    json["format"] = layout_.is_criteo ? "criteo_tsv" : "csv";
    if (!layout_.is_criteo) {
      json["separator"] = std::string(1, layout_.format.separator);
      json["header"] = layout_.has_header;
      json["quotes"] = layout_.format.quotes;
    }
    json["files"] = files_.paths.size();
    json["bytes"] = BytesOf(files_.paths, files_.store.get());
    json["rows"] = rows_;
    json["complete"] = is_complete_;
    json["malformed_rows"] = malformed_;
    if (malformed_ > 0) json["first_malformed"] = first_malformed_;
    if (headers_ > 0) json["repeated_headers"] = headers_;
    json["columns"] = ColumnFigures(scans_);
    for (size_t c = 0; c < scans_.size(); ++c) flags_->AddImplied(c, names_, &json["columns"][c]);
    for (size_t c = layout_.columns.size(); c < scans_.size(); ++c) {
      json["columns"][c]["from_folder"] = true;
    }
    return json;
  }

  TextFiles files_;
  const TextLayout layout_;
  const int64_t max_rows_;
  ThreadPool threads_;
  std::vector<ColumnScan> scans_;
  std::vector<std::string> names_;  // [scans_]
  std::optional<FlagPairs> flags_;  // Once the columns are known.
  std::vector<LineColumns> lines_;  // The first num_lines_ are the rows that were read last.
  int64_t num_lines_ = 0;
  int64_t rows_read_ = 0;
  bool is_complete_ = false;  // Whether all rows were read.
  int64_t rows_ = 0, malformed_ = 0, headers_ = 0;
  std::string first_malformed_;
};

// ---- npy

// Returns the number of columns of a file [rows, columns]; 1 for [rows], 0 if there is no file.
absl::StatusOr<int> ColumnsOf(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return 0;
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedNpy> npy, MappedNpy::Open(path));
  const std::vector<int64_t>& shape = npy->header().shape;
  return shape.size() < 2 ? 1 : static_cast<int>(shape[1]);
}

// The names of the folder's lists, each of which has files of its own.
std::vector<std::string> ListsOf(const std::string& prefix) {
  constexpr absl::string_view kEnd = "_offsets.npy";
  const auto files = ListFiles(absl::StrCat(prefix, "_*", kEnd));
  std::vector<std::string> names = files.ok() ? *files : std::vector<std::string>();
  for (std::string& name : names) {
    name = name.substr(prefix.size() + 1, name.size() - prefix.size() - 1 - kEnd.size());
  }
  return names;
}

// What is in a folder's files. Adds a scan for each label, dense column and feature, in this order.
absl::StatusOr<NpyShape> ShapeOf(const std::string& prefix, const InspectionOptions& options,
                                 std::vector<ColumnScan>* scans) {
  NpyShape shape;
  ASSIGN_OR_RETURN(shape.num_tasks, ColumnsOf(prefix + "_labels.npy"));
  ASSIGN_OR_RETURN(shape.num_dense, ColumnsOf(prefix + "_dense.npy"));
  ASSIGN_OR_RETURN(const int sparse, ColumnsOf(prefix + "_sparse.npy"));
  const std::vector<std::string>& names = options.hints.columns;
  if (!names.empty() && names.size() != static_cast<size_t>(sparse)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--columns names ", names.size(), " columns, and ", prefix, "_sparse.npy has ", sparse));
  }
  const std::vector<std::string> lists = ListsOf(prefix);
  const size_t keys = KeysOfColumn(kMaxKeys, sparse + lists.size());
  const bool has_labels = shape.num_tasks > 1;
  shape.labels.resize(shape.num_tasks);
  shape.labels_may_be_missing = has_labels;
  for (int c = 0; c < shape.num_tasks; ++c) {
    shape.labels[c] = c;
    scans->emplace_back(has_labels ? absl::StrCat("label_", c + 1) : "label", 0, keys);
  }
  for (int c = 1; c <= shape.num_dense; ++c) scans->emplace_back(absl::StrCat("I", c), 0, keys);
  shape.features.resize(sparse);
  for (int c = 0; c < sparse; ++c) {
    scans->emplace_back(names.empty() ? absl::StrCat("C", c + 1) : names[c], 0, keys);
  }
  for (const std::string& list : lists) {
    NpyFeature& feature = shape.features.emplace_back();
    feature.list = list;
    feature.max_length = std::numeric_limits<int64_t>::max();
    scans->emplace_back(list, ColumnScan::kOfLists, keys);
  }
  return shape;
}

// Adds a column's values of all rows of a batch, in their order.
//   column: as ShapeOf numbers the scans
void AddNpyColumn(const Batch& batch, int64_t column, ColumnScan* scan) {
  const int64_t tasks = batch.num_tasks;
  for (int row = 0; row < batch.size; ++row) {
    if (column < tasks) {
      const int64_t at = row * tasks + column;
      const bool is_there = batch.weights.empty() || batch.weights[at] > 0;
      is_there ? scan->AddNumber(batch.labels[at]) : scan->AddKeys({});
    } else if (column < tasks + batch.num_dense) {
      scan->AddNumber(batch.dense_row(row)[column - tasks]);
    } else {
      const FeatureLookups& feature = batch.features[column - tasks - batch.num_dense];
      const int32_t begin = feature.offsets[row];
      scan->AddKeys(
          absl::MakeConstSpan(feature.keys).subspan(begin, feature.offsets[row + 1] - begin));
    }
  }
}

absl::StatusOr<Json> InspectNpy(const std::string& folder, const InspectionOptions& options,
                                const OnInspected& on_inspected) {
  const int64_t max_rows = options.max_rows;
  const std::string prefix = folder + "/train";
  std::vector<ColumnScan> scans;
  ASSIGN_OR_RETURN(const NpyShape shape, ShapeOf(prefix, options, &scans));
  ASSIGN_OR_RETURN(const std::shared_ptr<const NpyFiles> files, NpyFiles::Open(prefix, shape));
  const int64_t rows = max_rows == 0 ? files->rows() : std::min(files->rows(), max_rows);
  if (rows == 0) return absl::InvalidArgumentError(absl::StrCat(prefix, "_labels.npy has no row"));
  NpySource source(files, shape, 0, rows);
  RETURN_IF_ERROR(source.Rewind(0));
  ThreadPool threads(options.threads);
  RawBatch raw;
  Batch batch;
  int64_t done = 0, bad_rows = 0;
  while (done < rows) {
    ASSIGN_OR_RETURN(const bool more, source.Read(kRowsAtATime, &raw));
    if (!more) break;
    raw.slice_begin = 0;
    raw.slice_end = raw.num_rows;
    std::vector<int64_t> bad;
    RETURN_IF_ERROR(source.Parse(raw, &batch, &bad));
    bad_rows += static_cast<int64_t>(bad.size());
    threads.ParallelFor(static_cast<int64_t>(scans.size()),
                        [&](int64_t column, int) { AddNpyColumn(batch, column, &scans[column]); });
    done += raw.num_rows;
    if (on_inspected) on_inspected(done, static_cast<double>(done) / static_cast<double>(rows));
  }
  if (bad_rows == rows) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix,
                     "_*.npy: no row is good: a label is 0 or 1, a dense value is finite, and "
                     "lists lie within their values"));
  }
  std::vector<std::string> paths;
  for (const MappedNpy* file : files->all()) paths.push_back(file->path());
  std::vector<std::string> parts = {"dense", "sparse", "labels"};
  for (const NpyFeature& feature : shape.features) parts.push_back(feature.list + "_offsets");
  Json json;
  json["format"] = "npy";
  json["files"] = paths.size();
  json["bytes"] = BytesOf(paths);
  json["rows"] = rows;
  json["complete"] = rows == files->rows();
  json["malformed_rows"] = bad_rows;
  json["has_test_rows"] = NpyFiles::AnyExists(folder + "/test", parts);
  json["label_columns"] = shape.num_tasks;  // The first columns are labels.
  json["columns"] = ColumnFigures(scans);
  return json;
}

bool IsNpyFile(const std::string& path) { return absl::EndsWith(path, ".npy"); }

}  // namespace

absl::StatusOr<Json> InspectData(const InspectionOptions& options,
                                 const OnInspected& on_inspected) {
  std::error_code error;
  if (options.paths.size() == 1 &&
      std::filesystem::exists(options.paths[0] + "/train_labels.npy", error)) {
    return InspectNpy(options.paths[0], options, on_inspected);
  }
  Data data;
  *data.mutable_s3() = options.s3;
  data.mutable_train()->mutable_path()->Assign(options.paths.begin(), options.paths.end());
  ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store, OpenStore(data));
  ASSIGN_OR_RETURN(std::vector<std::string> files, ListAll(data.train(), store.get()));
  const auto npy = std::find_if(files.begin(), files.end(), IsNpyFile);
  if (npy != files.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(*npy,
                     " is an npy file; name the one folder that has train_dense.npy, "
                     "train_sparse.npy and train_labels.npy"));
  }
  const auto is_parquet = [&](const std::string& file) { return IsParquet(file, store.get()); };
  if (is_parquet(files[0])) {
    const auto other = std::find_if_not(files.begin(), files.end(), is_parquet);
    if (other != files.end()) {
      return absl::InvalidArgumentError(absl::StrCat(files[0], " is a Parquet file, and ", *other,
                                                     " is none; name files of one kind"));
    }
    absl::StatusOr<Json> figures =
        InspectParquet(files, store.get(), options, kMaxKeys, on_inspected);
    if (figures.ok()) (*figures)["bytes"] = BytesOf(files, store.get());
    return figures;
  }
  ASSIGN_OR_RETURN(TextLayout layout, GuessTextLayout(files[0], options.hints, store.get()));
  for (size_t i = 1; i < files.size(); ++i) {
    RETURN_IF_ERROR(CheckSameLayout(files[i], files[0], layout, store.get()));
  }
  return TextInspection(std::move(files), store, std::move(layout), options).Run(on_inspected);
}

}  // namespace thermocline
