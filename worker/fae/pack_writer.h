// Makes a pack file from the training rows, in their order.
#ifndef THERMOCLINE_WORKER_FAE_PACK_WRITER_H_
#define THERMOCLINE_WORKER_FAE_PACK_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/disk/disk.h"
#include "worker/fae/pack_format.h"

namespace thermocline {

// Not thread-safe. Unless Finish() has succeeded, the destructor removes the file.
class PackWriter {
 public:
  // Creates `path`.tmp, whose folder has to exist. `disk` must outlive the writer.
  //   lookups: the most lookups of a feature in a batch, at most 2^31 - 1
  // Errors: Disk::Create's.
  static absl::StatusOr<std::unique_ptr<PackWriter>> Create(Disk* disk, const std::string& path,
                                                            const PackIdentity& identity,
                                                            int64_t batch_size,
                                                            const LookupLimit& lookups);
  ~PackWriter();
  PackWriter(const PackWriter&) = delete;
  PackWriter& operator=(const PackWriter&) = delete;

  // Adds row `row` of `from` to the batches of a kind. Errors: AppendFile::Append's;
  // kInvalidArgument (a batch would have more lookups of a feature than a pack can number: names
  // the feature and the row of the data).
  absl::Status Add(const Batch& from, int row, bool is_hot);
  // Writes the last batches, which may have fewer rows, and the tail, and renames the file to
  // `path`. Errors: AppendFile's, Disk::Rename's, Disk::SyncDirectory's.
  absl::Status Finish(HotSet hot_set, std::string report);

  // The rows added and the batches written so far.
  const PackCounts& counts() const { return tail_.counts; }
  uint64_t bytes() const { return bytes_; }

 private:
  PackWriter(Disk* disk, std::string path) : disk_(*disk), path_(std::move(path)) {}
  std::string temporary() const { return path_ + ".tmp"; }
  absl::Status Append(const std::string& bytes);
  absl::Status WriteBatch(bool is_hot);

  Disk& disk_;
  const std::string path_;
  LookupLimit lookups_;
  std::unique_ptr<AppendFile> file_;
  bool finished_ = false;
  uint64_t bytes_ = 0;
  uint64_t started_writeback_ = 0;
  Batch open_[2];  // [0] cold, [1] hot: rows that are not a whole batch yet.
  PackTail tail_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_PACK_WRITER_H_
