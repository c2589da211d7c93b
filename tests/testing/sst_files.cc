#include "tests/testing/sst_files.h"

#include <stdlib.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/checkpoint/disk_env.h"
#include "common/checkpoint/row_key.h"
#include "common/checkpoint/rows_file.h"
#include "rocksdb/env.h"
#include "rocksdb/sst_file_writer.h"

namespace thermocline {
namespace {

// The bytes of an SST file; `tail_at` is where its tail begins.
std::string SstBytes(const TestRows& rows, uint64_t* tail_at) {
  const char* const temporary = getenv("TEST_TMPDIR");
  std::string folder = absl::StrCat(temporary == nullptr ? "/tmp" : temporary, "/sst-XXXXXX");
  CHECK(mkdtemp(&folder[0]) != nullptr);
  const std::string path = folder + "/rows.sst";
  rocksdb::Env* const env = rocksdb::Env::Default();
  rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), SstFileOptions(env));
  CHECK(writer.Open(path).ok());
  for (const auto& [key, row] : rows) {
    const auto key_bytes = EncodeRowKey(key);
    std::string value(RowValueBytes(row.values.size()), '\0');
    EncodeRowValue(row.lookups, row.changed, row.values, absl::MakeSpan(&value[0], value.size()));
    CHECK(writer.Put(rocksdb::Slice(key_bytes.data(), key_bytes.size()), value).ok());
  }
  *tail_at = writer.FileSize();
  CHECK(writer.Finish().ok());
  std::string bytes;
  CHECK(rocksdb::ReadFileToString(env, path, &bytes).ok());
  CHECK_EQ(unlink(path.c_str()), 0);
  CHECK_EQ(rmdir(folder.c_str()), 0);
  return bytes;
}

}  // namespace

CheckpointFile WriteSstFile(Disk* disk, const std::string& directory, const std::string& path,
                            const TestRows& rows) {
  CHECK(absl::EndsWith(path, kSstFileSuffix) && !rows.empty());
  uint64_t tail_at = 0;
  const std::string bytes = SstBytes(rows, &tail_at);
  const std::string full_path = absl::StrCat(directory, "/", path);
  CHECK(CreateDirectories(disk, FolderOf(full_path)).ok());
  const auto file = disk->Create(full_path);
  CHECK(file.ok() && (*file)->Append({bytes}).ok());
  CheckpointFile listed;
  listed.set_path(path);
  listed.set_bytes(bytes.size());
  listed.set_crc32c(Crc32c(bytes.data(), bytes.size()));
  listed.set_rows(rows.size());
  listed.set_tail_bytes(bytes.size() - tail_at);
  listed.set_tail_crc32c(Crc32c(bytes.data() + tail_at, bytes.size() - tail_at));
  return listed;
}

void ReplaceBySstFile(Disk* disk, const std::string& directory, CheckpointFile* file) {
  TestRows rows;
  {
    const auto reader = RowsFileReader::Open(disk, directory, *file);
    CHECK(reader.ok());
    for (SavedRow row;;) {
      const auto more = (*reader)->Next(&row);
      CHECK(more.ok());
      if (!*more) break;
      rows[row.key] = {row.lookups, row.changed, {row.values.begin(), row.values.end()}};
    }
  }
  CHECK(disk->Remove(absl::StrCat(directory, "/", file->path())).ok());
  const absl::string_view stem = absl::StripSuffix(file->path(), kRowsFileSuffix);
  *file = WriteSstFile(disk, directory, absl::StrCat(stem, kSstFileSuffix), rows);
}

}  // namespace thermocline
