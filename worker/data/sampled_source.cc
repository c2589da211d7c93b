#include "worker/data/sampled_source.h"

#include <algorithm>
#include <cmath>

#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace thermocline {

int64_t BlockSample::FirstOf(int64_t group) const {
  return static_cast<int64_t>(std::floor(static_cast<double>(group) / share_));
}

int64_t BlockSample::BlockOf(int64_t group) const {
  const int64_t first = FirstOf(group);
  const auto blocks = static_cast<uint64_t>(std::max<int64_t>(FirstOf(group + 1) - first, 1));
  const uint64_t random = Mix64(Mix64(seed_) ^ static_cast<uint64_t>(group));
  return first + static_cast<int64_t>(random % blocks);
}

absl::Status SampledSource::Rewind(uint32_t pass) {
  pass_ = pass;
  next_group_ = 0;
  next_block_ = 0;
  has_read_ = false;
  at_end_ = false;
  return source_->Rewind(pass);
}

absl::StatusOr<bool> SampledSource::Read(int64_t batch_size, RawBatch* raw) {
  if (at_end_) return false;
  const int64_t block = sample_.BlockOf(next_group_++);
  const int64_t wanted = (block - next_block_) * batch_size;
  ASSIGN_OR_RETURN(const int64_t skipped, wanted > 0 ? source_->Skip(wanted) : 0);
  next_block_ = block + 1;
  bool some = false;
  if (skipped == wanted) {
    ASSIGN_OR_RETURN(some, source_->Read(batch_size, raw));
  }
  if (!some && !has_read_) {
    RETURN_IF_ERROR(source_->Rewind(pass_));
    ASSIGN_OR_RETURN(some, source_->Read(batch_size, raw));
    at_end_ = true;
  }
  has_read_ = true;
  return some;
}

absl::StatusOr<int64_t> SampledSource::Skip(int64_t rows) {
  return absl::UnimplementedError("a sample is read from its beginning");
}

}  // namespace thermocline
