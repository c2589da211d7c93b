#include "worker/data/data_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/disk/file_list.h"
#include "common/job/job_data.h"

namespace thermocline {

absl::StatusOr<std::shared_ptr<ObjectStore>> OpenStore(const Data& data) {
  bool is_used = false;
  for (const Data::Files& files : {data.train(), data.test()}) {
    for (const std::string& path : files.path()) is_used |= IsObjectPath(path);
  }
  if (!is_used) return std::shared_ptr<ObjectStore>();
  ASSIGN_OR_RETURN(std::unique_ptr<ObjectStore> store, ObjectStore::Open(data.s3()));
  return std::shared_ptr<ObjectStore>(std::move(store));
}

absl::StatusOr<std::vector<std::string>> ListAll(const Data::Files& files, ObjectStore* store) {
  std::vector<std::string> all;
  for (const std::string& path : files.path()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> found,
                     IsObjectPath(path) ? store->List(path) : ListFiles(path));
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

std::string SummarizeTrainingFiles(const Data& resolved) {
  const Data::Files files = DescribeData(resolved).train();
  std::vector<std::string> paths;
  for (const std::string& path : files.path()) {
    if (IsObjectPath(path)) return "";
    const absl::StatusOr<std::vector<std::string>> found =
        ListFiles(files.has_npy() ? path + "/train_*.npy" : path);
    if (!found.ok()) return "";
    paths.insert(paths.end(), found->begin(), found->end());
  }
  uint64_t bytes = 0;
  uint32_t checksum = 0;
  for (const std::string& path : paths) {
    struct stat status;
    if (stat(path.c_str(), &status) != 0) return "";
    const auto size = static_cast<uint64_t>(status.st_size);
    const std::string name = path.substr(path.rfind('/') + 1);
    checksum = ExtendCrc32c(checksum, name.c_str(), name.size() + 1);
    checksum = ExtendCrc32c(checksum, &size, sizeof(size));
    bytes += size;
  }
  return absl::StrCat(paths.size(), paths.size() == 1 ? " file, " : " files, ", bytes, " bytes, ",
                      absl::Hex(checksum, absl::kZeroPad8));
}

absl::StatusOr<TextFiles> FindFiles(const Data::Files& files, std::shared_ptr<ObjectStore> store,
                                    ColumnNames* columns) {
  TextFiles found;
  found.store = std::move(store);
  ASSIGN_OR_RETURN(found.paths, ListAll(files, found.store.get()));
  if (files.has_csv()) {
    found.format.separator = files.csv().separator().at(0);
    found.format.quotes = files.csv().quotes();
  }
  if (files.has_csv() && files.csv().header()) {
    ASSIGN_OR_RETURN(found.header, ReadHeader(found.paths[0], found.format, found.store.get()));
    *columns = {found.header, absl::StrCat("the header of ", found.paths[0])};
  } else {
    *columns = {TextColumns(files), "data.train.csv.column"};
  }
  return found;
}

void AddIndexes(const Data& data, const ColumnNames& columns, const TextIndexOptions& options,
                TextFiles* files) {
  const Data::Split& split = data.split();
  const auto column = std::find(columns.names.begin(), columns.names.end(), split.column());
  // What decides which rows a file has, and which of them are held out.
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
