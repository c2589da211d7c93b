#include "worker/dense/dense_slices.h"

#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/math/gradient_merge.h"
#include "common/math/table_spec.h"

namespace thermocline {
namespace {

constexpr size_t kBlockBytes = kDenseBlockFloats * sizeof(float);

// Before the gradients.
struct OfData {
  uint32_t ends = 0;
  uint32_t checksum = 0;
};
constexpr size_t kOfDataBytes = sizeof(OfData);

OfData OfDataIn(absl::Span<const uint8_t> block) {
  OfData data;
  std::memcpy(&data, block.data(), kOfDataBytes);
  return data;
}

}  // namespace

DenseSlices::DenseSlices(const std::vector<DenseTable>& tensors, const ClusterMap& servers,
                         Exchange* exchange, std::string data)
    : exchange_(exchange),
      data_(std::move(data)),
      by_rank_(tensors, ClusterMap(exchange->num_ranks())),
      own_(tensors, servers, {exchange->rank().value(), exchange->num_ranks()}) {}

absl::Status DenseSlices::PostGradients(Step step, bool ends_data,
                                        absl::Span<const float> gradients) {
  std::vector<Block> to_ranks;
  const OfData of_data = {ends_data ? 1u : 0u, Crc32c(data_.data(), data_.size())};
  for (uint32_t rank = 0; rank < exchange_->num_ranks(); ++rank) {
    const int64_t sent_blocks = WorkerRank(rank) == exchange_->rank() ? 0 : blocks_of(rank);
    auto bytes = std::make_shared<BlockBytes>(kOfDataBytes + sent_blocks * kBlockBytes);
    std::memcpy(bytes->data(), &of_data, kOfDataBytes);
    const int64_t begin = by_rank_.begin_of(ServerIndex(rank));
    for (int64_t i = 0; i < sent_blocks; ++i) {
      std::memcpy(bytes->data() + kOfDataBytes + i * kBlockBytes,
                  &gradients[by_rank_.arena_block(begin + i) * kDenseBlockFloats], kBlockBytes);
    }
    to_ranks.push_back({BlockKind::kData, std::move(bytes)});
  }
  return exchange_->Post({step, Phase::kDenseGradients}, std::move(to_ranks));
}

absl::Status DenseSlices::UpdateOwn(Step step, const UpdateScalars& scalars,
                                    absl::Span<const float> gradients, absl::Span<float> weights,
                                    absl::Span<float> state) {
  const uint32_t num_ranks = exchange_->num_ranks();
  const int64_t own_blocks = blocks_of(exchange_->rank().value());
  const int64_t begin = by_rank_.begin_of(ServerIndex(exchange_->rank().value()));
  CHECK(scalars.kind == by_rank_.optimizer().kind);
  const RowUpdate update = SelectRowUpdate(scalars);
  auto updated = std::make_shared<BlockBytes>(own_blocks * kBlockBytes);
  {
    const BlockId id = {step, Phase::kDenseGradients};
    ASSIGN_OR_RETURN(const ReceivedBlocks received, exchange_->Receive(id));
    RETURN_IF_ERROR(CheckSizes(id, received));
    RETURN_IF_ERROR(CheckData(step, received));
    std::array<float, kDenseBlockFloats> sum;
    for (int64_t i = 0; i < own_blocks; ++i) {
      const int64_t block = by_rank_.arena_block(begin + i);
      for (uint32_t rank = 0; rank < num_ranks; ++rank) {
        const float* gradient = &gradients[block * kDenseBlockFloats];
        if (WorkerRank(rank) != exchange_->rank()) {
          const uint8_t* const others = received.from(WorkerRank(rank)).data() + kOfDataBytes;
          gradient = reinterpret_cast<const float*>(others + i * kBlockBytes);
        }
        MergeGradient(/*is_first=*/rank == 0, gradient, kDenseBlockFloats, sum.data());
      }
      if (FindNonFinite(sum) != sum.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("step ", step.value(), ": a sum of the workers' gradients of '",
                         by_rank_.TensorOf(block).layout.name, "' is not finite", kRateHint));
      }
      float* const row = &weights[block * kDenseBlockFloats];
      update(scalars, sum.data(), /*lookups=*/0, row,
             state.data() + block * by_rank_.state_floats(), kDenseBlockFloats);
      std::memcpy(updated->data() + i * kBlockBytes, row, kBlockBytes);
    }
  }
  const Block block = {BlockKind::kData, std::move(updated)};
  return exchange_->Post({step, Phase::kDenseWeights}, std::vector<Block>(num_ranks, block));
}

absl::Status DenseSlices::ReceiveWeights(Step step, absl::Span<float> weights) {
  const BlockId id = {step, Phase::kDenseWeights};
  ASSIGN_OR_RETURN(const ReceivedBlocks received, exchange_->Receive(id));
  RETURN_IF_ERROR(CheckSizes(id, received));
  for (uint32_t rank = 0; rank < exchange_->num_ranks(); ++rank) {
    if (rank == exchange_->rank().value()) continue;  // They are there.
    const int64_t begin = by_rank_.begin_of(ServerIndex(rank));
    for (int64_t i = 0; i < blocks_of(rank); ++i) {
      std::memcpy(&weights[by_rank_.arena_block(begin + i) * kDenseBlockFloats],
                  received.from(WorkerRank(rank)).data() + i * kBlockBytes, kBlockBytes);
    }
  }
  return absl::OkStatus();
}

absl::Status DenseSlices::CheckSizes(BlockId id, const ReceivedBlocks& received) const {
  for (uint32_t rank = 0; rank < exchange_->num_ranks(); ++rank) {
    const bool is_own = WorkerRank(rank) == exchange_->rank();
    const int64_t sent_blocks = is_own ? 0 : blocks_of(exchange_->rank().value());
    const size_t expected = id.phase == Phase::kDenseGradients
                                ? kOfDataBytes + sent_blocks * kBlockBytes
                                : blocks_of(rank) * kBlockBytes;
    const size_t bytes = received.from(WorkerRank(rank)).size();
    if (bytes == expected) continue;
    return absl::InternalError(
        absl::StrCat(Describe(id), " of rank ", rank, " have ", bytes, " bytes, not ", expected));
  }
  return absl::OkStatus();
}

absl::Status DenseSlices::CheckData(Step step, const ReceivedBlocks& received) const {
  const OfData first = OfDataIn(received.from(WorkerRank(0)));
  for (uint32_t rank = 1; rank < exchange_->num_ranks(); ++rank) {
    const OfData other = OfDataIn(received.from(WorkerRank(rank)));
    if (other.checksum != first.checksum) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the workers see different data: those of rank ", rank, " are not those of rank 0; rank ",
          exchange_->rank().value(), " has ", data_));
    }
    if (other.ends == first.ends) continue;
    const bool ends = other.ends != 0;
    return absl::InvalidArgumentError(absl::StrCat("the workers see different data: those of rank ",
                                                   ends ? rank : 0, " end with step ", step.value(),
                                                   ", those of rank ", ends ? 0 : rank, " do not"));
  }
  return absl::OkStatus();
}

}  // namespace thermocline
