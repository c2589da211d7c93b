// A BatchSource of the {dense,sparse,labels}.npy files of one split, which it maps into memory.
//
//   dense   float32 [N, num_dense], finite; not read where num_dense is 0
//   sparse  int32, int64 or uint64 [N, columns of all features]; the columns of a feature, which
//           are neighbours, are its bag. An id's 64 bits (of an int32, sign-extended) are the key;
//           padding is left out (Feature.padding_id in proto/job.proto). Not read where there is no
//           feature
//   labels  int32, int64 or float32 [N, columns of data.label], or [N] where there is one: 0 or 1,
//           or not a number where labels may be missing
//
// and of two more for each feature that is a list (Feature.sequence), with its name in theirs:
//
//   NAME_values   int32, int64 or uint64 [M]; every id is a key
//   NAME_offsets  int32 or int64 [N + 1], from 0 to M: row i has the values offsets[i] ..
//                 offsets[i + 1]
#ifndef THERMOCLINE_WORKER_DATA_NPY_NPY_SOURCE_H_
#define THERMOCLINE_WORKER_DATA_NPY_NPY_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/disk/npy.h"
#include "worker/data/batch.h"
#include "worker/data/pinned_files.h"
#include "worker/data/step_lists.h"

namespace thermocline {

struct NpyFeature {
  enum class Padding { kNone, kNegative, kOneId };

  int columns = 1;  // How many columns of the sparse file it has.
  Padding padding = Padding::kNone;
  Key padding_key = 0;  // kOneId: the id's 64 bits
  std::string list;     // Its name, where it is a list with files of its own; "": it has columns.
  int64_t max_length = 0;
  bool keeps_first = false;
};

struct NpyShape {
  int num_dense = 0;
  int num_tasks = 1;
  std::vector<int> labels = {0};  // The task that learns each column; -1: it is checked only.
  bool labels_may_be_missing = false;
  bool needs_labels = true;
  std::vector<NpyFeature> features;
  StepLists step_lists;

  int sparse_columns() const;
};

// A list's files.
struct NpyList {
  std::unique_ptr<MappedNpy> values, offsets;
};

// Immutable; shared by the sources that read it.
struct NpyFiles {
  std::unique_ptr<MappedNpy> dense;   // null: num_dense is 0
  std::unique_ptr<MappedNpy> sparse;  // null: there are no features, or lists alone
  std::unique_ptr<MappedNpy> labels;  // null: there is no such file, and labels are not needed
  std::vector<NpyList> lists;         // [features]; null where a feature is no list

  // Maps those of PREFIX_dense.npy, ... that are needed, and checks their dtypes, shapes and
  // numbers of rows. Errors: kNotFound, kDataLoss (truncated), kInvalidArgument (a wrong dtype or
  // shape: says what is there and what is wanted).
  static absl::StatusOr<std::shared_ptr<const NpyFiles>> Open(const std::string& prefix,
                                                              const NpyShape& shape);
  // Whether PREFIX_PART.npy exists for any of the parts (NpyParts).
  static bool AnyExists(const std::string& prefix, const std::vector<std::string>& parts);

  int64_t rows() const;
  std::vector<const MappedNpy*> all() const;
};

class NpySource : public BatchSource {
 public:
  // Reads rows [begin, end) of `files`.
  //   pinned: null if the files are not checked for changes
  NpySource(std::shared_ptr<const NpyFiles> files, const NpyShape& shape, int64_t begin,
            int64_t end, std::shared_ptr<PinnedFiles> pinned = nullptr);

  absl::Status Rewind(uint32_t pass) override;
  absl::StatusOr<bool> Read(int64_t batch_size, RawBatch* raw) override;
  absl::StatusOr<int64_t> Skip(int64_t rows) override;
  absl::Status Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>* bad_rows) override;
  absl::Status DescribeBadRow(const RawBatch& raw, int64_t row) override;
  std::string PlaceOf(const RawBatch& raw, int64_t row) override;
  void Cancel() override { cancelled_.store(true, std::memory_order_relaxed); }

 private:
  const std::shared_ptr<const NpyFiles> files_;
  const NpyShape shape_;
  const int64_t begin_;
  const int64_t end_;
  const std::shared_ptr<PinnedFiles> pinned_;
  std::atomic<bool> cancelled_{false};
  int64_t next_row_;  // Only the thread that reads uses it.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_NPY_NPY_SOURCE_H_
