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
#include "worker/data/batch_reader.h"
#include "worker/fae/pack_format.h"

namespace thermocline {

// Not thread-safe. Destruction removes the file where Finish() did not succeed.
class PackWriter {
 public:
  // Makes `path`.tmp; its folder exists. `disk` outlives the writer. Errors: as Disk::Create().
  // lookups: of each feature in a batch, at most 2^31 - 1.
  static absl::StatusOr<std::unique_ptr<PackWriter>> Create(Disk* disk, const std::string& path,
                                                            const PackIdentity& identity,
                                                            int64_t batch_size,
                                                            const LookupLimit& lookups);
  ~PackWriter();
  PackWriter(const PackWriter&) = delete;
  PackWriter& operator=(const PackWriter&) = delete;

  // Adds one row of `from` to the batches of a kind. Errors: as AppendFile::Append();
  // kInvalidArgument (a batch would have more lookups of a feature than a pack can number: says of
  // which one, and which row of the data it is).
  absl::Status Add(const Batch& from, int row, bool is_hot);
  // Writes what is left and puts the file in its place; the last batch of each kind may be shorter.
  // Errors: as AppendFile, Disk::Rename() and Disk::SyncDirectory().
  absl::Status Finish(HotSet hot_set, std::string report);

  // So far; batches: those that were cut.
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
  Batch open_[2];  // Rows of each kind that are not a batch yet.
  PackTail tail_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_PACK_WRITER_H_
