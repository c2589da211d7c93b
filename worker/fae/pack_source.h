// A BatchSource of a pack's batches of one kind. It reads each global batch at its place in the
// file, and checks it; the worker's slice of it is parsed.
#ifndef THERMOCLINE_WORKER_FAE_PACK_SOURCE_H_
#define THERMOCLINE_WORKER_FAE_PACK_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/disk/disk.h"
#include "worker/data/batch.h"
#include "worker/fae/pack_format.h"

namespace thermocline {

// An open pack. Immutable; shared by the sources that read it.
struct PackFile {
  std::string path;
  std::unique_ptr<ReadFile> file;
  PackIdentity identity;
  PackTail tail;

  // Opens `path` and reads all but the batches. Errors: kNotFound, kUnavailable, kDataLoss,
  // kFailedPrecondition (another version); each names the file.
  static absl::StatusOr<std::shared_ptr<const PackFile>> Open(Disk* disk, const std::string& path);

  int64_t RowsOf(const ChunkName& name) const;
};

// How many features, dense columns and labels the job's batches have.
struct PackShape {
  size_t num_features = 0;
  size_t num_dense = 0;
  size_t num_tasks = 1;

  bool operator==(const PackShape& other) const {
    return num_features == other.num_features && num_dense == other.num_dense &&
           num_tasks == other.num_tasks;
  }
};

class PackSource : public BatchSource {
 public:
  // Reads `num_batches` batches of a kind, from `first_batch` on. REQUIRES: the pack has them
  PackSource(std::shared_ptr<const PackFile> pack, const PackShape& shape, bool is_hot,
             int64_t first_batch, int64_t num_batches)
      : pack_(std::move(pack)),
        shape_(shape),
        is_hot_(is_hot),
        first_batch_(first_batch),
        num_batches_(num_batches),
        next_batch_(first_batch) {}

  absl::Status Rewind(uint32_t pass) override;
  // Reads a batch of the pack, whatever `batch_size` is.
  absl::StatusOr<bool> Read(int64_t batch_size, RawBatch* raw) override;
  absl::StatusOr<int64_t> Skip(int64_t rows) override;
  absl::Status Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>* bad_rows) override;
  absl::Status DescribeBadRow(const RawBatch& raw, int64_t row) override;
  std::string PlaceOf(const RawBatch& raw, int64_t row) override;
  void Cancel() override { cancelled_.store(true, std::memory_order_relaxed); }

 private:
  ChunkName NextChunk() const { return {is_hot_, next_batch_}; }

  const std::shared_ptr<const PackFile> pack_;
  const PackShape shape_;
  const bool is_hot_;
  const int64_t first_batch_;
  const int64_t num_batches_;
  std::atomic<bool> cancelled_{false};
  int64_t next_batch_;  // Only the thread that reads uses it.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_PACK_SOURCE_H_
