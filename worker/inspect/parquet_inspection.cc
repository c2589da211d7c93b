#include "worker/inspect/parquet_inspection.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arrow/parquet.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/disk/file_list.h"
#include "worker/data/parquet/parquet_source.h"
#include "worker/inspect/column_scan.h"
#include "worker/inspect/flag_pairs.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kRowsOfRead = 4096;

// Checks that a file has these columns. Errors: kInvalidArgument (names the first difference)
absl::Status CheckSameColumns(const std::string& path, const std::string& first,
                              const std::vector<ParquetColumn>& columns,
                              const std::vector<ParquetColumn>& wanted) {
  const auto find = [](const std::vector<ParquetColumn>& all, const std::string& name) {
    return std::find_if(all.begin(), all.end(),
                        [&](const ParquetColumn& column) { return column.name == name; });
  };
  const auto error = [](auto... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  for (const ParquetColumn& column : wanted) {
    const auto at = find(columns, column.name);
    if (at == columns.end()) {
      return error(path, ": has no column '", column.name, "', as ", first, " has");
    }
    if (at->kind != column.kind || at->is_list != column.is_list) {
      return error(path, ": the column '", column.name, "' is of type ", at->type, ", not ",
                   column.type, " as in ", first);
    }
  }
  for (size_t i = 0; i < columns.size(); ++i) {
    if (find(wanted, columns[i].name) == wanted.end()) {
      return error(path, ": has a column '", columns[i].name, "', which ", first, " has not");
    }
    if (i >= wanted.size() || columns[i].name != wanted[i].name) {
      return error(path, ": its columns are in another order than those of ", first);
    }
  }
  return absl::OkStatus();
}

// Adds the cell, or the list, of each of `rows` rows.
//   flag: the column in `flags`
void AddCells(const ParquetColumn& column, const ParquetCells& cells, int64_t rows,
              ColumnScan* scan, FlagPairs* flags, size_t flag) {
  std::string text;
  for (int64_t row = 0; row < rows; ++row) {
    const size_t begin = cells.offsets.empty() ? row : cells.offsets[row];
    const size_t end = cells.offsets.empty() ? row + 1 : cells.offsets[row + 1];
    text.clear();
    for (size_t cell = begin; cell < end; ++cell) {
      const int64_t index = cells.index(cell);
      if (index < 0) continue;
      if (!text.empty()) text += ColumnScan::kOfLists;
      AppendParquetText(column, *cells.values, static_cast<size_t>(index), &text);
    }
    scan->AddText(text);
    flags->Add(flag, text);
  }
}

bool HasFraction(const ParquetValues& values) {
  return std::any_of(values.reals.begin(), values.reals.end(),
                     [](double value) { return value != std::trunc(value); });
}

}  // namespace

bool IsParquet(const std::string& path, ObjectStore* store) {
  char magic[4] = {};
  if (IsObjectPath(path)) {
    const auto object = store->OpenStream(path);
    if (!object.ok() || !(*object)->Read(absl::MakeSpan(magic)).ok()) return false;
  } else {
    std::ifstream(path, std::ios::binary).read(magic, sizeof(magic));
  }
  return absl::string_view(magic, sizeof(magic)) == "PAR1";
}

absl::StatusOr<Json> InspectParquet(const std::vector<std::string>& files, ObjectStore* store,
                                    const InspectionOptions& options, size_t max_keys,
                                    const OnInspected& on_inspected) {
  const int64_t max_rows = options.max_rows;
  std::vector<std::unique_ptr<ParquetFile>> open;
  int64_t all_rows = 0;
  for (const std::string& path : files) {
    ASSIGN_OR_RETURN(std::unique_ptr<ParquetFile> file, OpenParquet(path, store));
    if (!open.empty()) {
      RETURN_IF_ERROR(CheckSameColumns(path, files[0], file->columns(), open.front()->columns()));
    }
    all_rows += file->rows();
    open.push_back(std::move(file));
  }
  const std::vector<ParquetColumn> columns = open.front()->columns();
  const int64_t wanted = max_rows == 0 ? all_rows : std::min(all_rows, max_rows);
  if (wanted == 0) return absl::InvalidArgumentError(absl::StrCat(files[0], ": there is no row"));
  std::vector<int> read;
  std::vector<ColumnScan> scans;
  std::vector<std::string> names;
  const size_t keys = KeysOfColumn(max_keys, columns.size());
  for (size_t c = 0; c < columns.size(); ++c) {
    if (columns[c].kind == ParquetColumn::Kind::kUnsupported) continue;
    read.push_back(static_cast<int>(c));
    scans.emplace_back(columns[c].name, columns[c].is_list ? ColumnScan::kOfLists : '\0', keys);
    scans.back().Count(options.counted);
    names.push_back(columns[c].name);
  }
  FlagPairs flags(names.size());
  ThreadPool threads(options.threads);
  std::vector<uint8_t> has_fraction(read.size());  // [read] Whether a list has a fraction.
  int64_t done = 0;
  std::vector<ParquetCells> cells;
  for (const auto& file : open) {
    RETURN_IF_ERROR(file->Seek(0, read));
    while (done < wanted) {
      ASSIGN_OR_RETURN(const int64_t rows,
                       file->Read(std::min(kRowsOfRead, wanted - done), &cells));
      if (rows == 0) break;
      threads.ParallelFor(static_cast<int64_t>(read.size()), [&](int64_t i, int) {
        AddCells(columns[read[i]], cells[i], rows, &scans[i], &flags, i);
        if (columns[read[i]].is_list && HasFraction(*cells[i].values)) has_fraction[i] = 1;
      });
      flags.EndBlock();
      done += rows;
      if (on_inspected) on_inspected(done, static_cast<double>(done) / static_cast<double>(wanted));
    }
  }
  Json json;
  json["format"] = "parquet";
  json["files"] = files.size();
  json["bytes"] = 0;
  json["rows"] = done;
  json["complete"] = done == all_rows;
  json["malformed_rows"] = 0;
  // These columns the job can't read, or can't use: a list of fractions is no list of ids.
  Json& left_out = json["left_out"] = Json::array();
  std::string last;
  for (const ParquetColumn& column : columns) {
    const bool is_known = column.kind != ParquetColumn::Kind::kUnsupported;
    if (is_known || column.name == std::exchange(last, column.name)) continue;  // A map has two.
    left_out.push_back({{"name", column.name}, {"type", column.type}});
  }
  Json& figures = json["columns"] = Json::array();
  for (size_t i = 0; i < scans.size(); ++i) {
    const ParquetColumn& column = columns[read[i]];
    if (has_fraction[i] != 0) {
      left_out.push_back({{"name", column.name}, {"type", column.type}});
    } else {
      figures.push_back(scans[i].Figures());
      flags.AddImplied(i, names, &figures.back());
    }
  }
  return json;
}

}  // namespace thermocline
