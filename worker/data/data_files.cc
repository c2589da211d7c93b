#include "worker/data/data_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/disk/file_list.h"
#include "common/job/job_data.h"

namespace thermocline {

namespace {

absl::StatusOr<std::vector<std::string>> PathsOf(
    const Data::Files& files, const google::protobuf::RepeatedPtrField<DataFile>& named,
    ObjectStore* store) {
  if (named.empty()) return ListAll(files, store);
  std::vector<std::string> paths;
  for (const DataFile& file : named) paths.push_back(file.path());
  return paths;
}

}  // namespace

absl::StatusOr<FoundFiles> FindFiles(const Job& job, const Data& data) {
  FoundFiles found;
  ASSIGN_OR_RETURN(found.store, OpenStore(data));
  ASSIGN_OR_RETURN(found.train, PathsOf(data.train(), job.data_files().train(), found.store.get()));
  if (data.has_test()) {
    ASSIGN_OR_RETURN(found.test, PathsOf(data.test(), job.data_files().test(), found.store.get()));
  }
  ASSIGN_OR_RETURN(found.pinned, PinnedFiles::Open(job.data_files(), found.store));
  return found;
}

void AddFolderKeys(TextFiles* files, ColumnNames* columns) {
  std::vector<std::vector<FolderKey>> keys;
  for (const std::string& path : files->paths) {
    std::vector<FolderKey>& of_file = keys.emplace_back();
    for (FolderKey& key : FolderKeysOf(path)) {
      const auto& names = columns->names;
      if (std::find(names.begin(), names.end(), key.name) != names.end()) continue;
      of_file.push_back(std::move(key));
    }
    const auto has_name = [](const FolderKey& a, const FolderKey& b) { return a.name == b.name; };
    if (std::equal(of_file.begin(), of_file.end(), keys[0].begin(), keys[0].end(), has_name))
      continue;
    absl::StrAppend(&columns->source, " (the folder of ", path, " has other keys than that of ",
                    files->paths[0], ", so none of them is a column)");
    return;
  }
  if (keys[0].empty()) return;
  for (const FolderKey& key : keys[0]) columns->names.push_back(key.name);
  columns->num_keys = keys[0].size();
  for (const std::vector<FolderKey>& of_file : keys) {
    std::vector<std::string>& values = files->keys.emplace_back();
    for (const FolderKey& key : of_file) values.push_back(key.value);
  }
}

void DropFolderKeys(TextFiles* files, ColumnNames* columns) {
  columns->names.resize(columns->names.size() - std::exchange(columns->num_keys, 0));
  files->keys.clear();
}

absl::StatusOr<TextFiles> DescribeFiles(const Data::Files& files, const FoundFiles& found,
                                        const std::vector<std::string>& paths,
                                        ColumnNames* columns) {
  TextFiles text;
  text.paths = paths;
  text.store = found.store;
  text.pinned = found.pinned;
  if (files.has_csv()) {
    text.format.separator = files.csv().separator().at(0);
    text.format.quotes = files.csv().quotes();
  }
  if (files.has_csv() && files.csv().header()) {
    ASSIGN_OR_RETURN(text.header, ReadHeader(text.paths[0], text.format, text.store.get()));
    *columns = {text.header, absl::StrCat("the header of ", text.paths[0]), /*num_keys=*/0,
                /*has_header=*/true};
  } else {
    *columns = {TextColumns(files), "data.train.csv.column"};
  }
  if (files.has_csv()) AddFolderKeys(&text, columns);
  return text;
}

void AddIndexes(const Data& data, const ColumnNames& columns, const TextIndexOptions& options,
                TextFiles* files) {
  const Data::Split& split = data.split();
  const auto column = std::find(columns.names.begin(), columns.names.end(), split.column());
  // These settings decide which rows a file has, and which of them are held out.
  const std::string reading =
      absl::StrCat("separator=", int{files->format.separator}, " quotes=", files->format.quotes,
                   " header=", !files->header.empty(),
                   split.column().empty() ? ""
                                          : absl::StrCat(" columns=", columns.names.size(),
                                                         " split=", column - columns.names.begin(),
                                                         ",", split.test_from()));
  for (const std::string& path : files->paths) {
    files->indexes.push_back(std::make_shared<TextIndex>(path, reading, options, files->store));
  }
}

}  // namespace thermocline
