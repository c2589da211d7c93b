#include "worker/rows/hot_gradients.h"

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/math/table_spec.h"
#include "worker/rows/cache_stage.h"
#include "worker/rows/row_gradients.h"

namespace thermocline {
namespace {

// Of one key, in a block: its number, its lookups, its gradient.
size_t KeyBytes(const TableLayout& table) {
  return 2 * sizeof(uint32_t) + sizeof(float) * table.dim;
}

}  // namespace

HotGradients::HotGradients(const HotRows* rows, Exchange* exchange)
    : rows_(rows),
      exchange_(exchange),
      received_(rows->tables().size(), std::vector<Received>(exchange->num_ranks())),
      merges_(rows->tables().size()) {}

absl::Status HotGradients::Post(const StepContext& context,
                                absl::Span<const absl::Span<const float>> gradients) {
  size_t bytes = sizeof(uint32_t) * merges_.size();
  for (size_t t = 0; t < merges_.size(); ++t) {
    const UninitializedVector<Key>& keys = context.plan.tables[t].keys;
    RETURN_IF_ERROR(CheckFinite(context.step(), rows_->tables()[t], gradients[t], "the gradient",
                                [&](size_t u) { return keys[u]; }));
    bytes += keys.size() * KeyBytes(rows_->tables()[t]);
  }
  BlockBytes block(bytes);
  uint8_t* to = block.data();
  const auto add = [&to](const auto& values) {
    const size_t size = sizeof(values[0]) * values.size();
    if (size > 0) std::memcpy(to, values.data(), size);
    to += size;
  };
  UninitializedVector<uint32_t> numbers;
  for (const TablePlan& table : context.plan.tables) numbers.push_back(table.num_unique());
  add(numbers);
  for (size_t t = 0; t < merges_.size(); ++t) {
    numbers.clear();
    for (const int32_t row : context.cache_plan.tables[t].rows) {
      numbers.push_back(static_cast<uint32_t>(row - rows_->first_row(t)));
    }
    add(numbers);
    add(context.plan.tables[t].counts);
    add(gradients[t]);
  }
  return PostBlock(context.step(), std::move(block));
}

absl::Status HotGradients::PostNone(Step step) { return PostBlock(step, {}); }

absl::Status HotGradients::PostBlock(Step step, BlockBytes bytes) {
  Block block;
  block.bytes = std::make_shared<BlockBytes>(std::move(bytes));
  return exchange_->Post({step, Phase::kGradients},
                         std::vector<Block>(exchange_->num_ranks(), block));
}

// The spans of values lie in `block`.
absl::Status HotGradients::Parse(Step step, uint32_t rank, absl::Span<const uint8_t> block) {
  const BlockId id = {step, Phase::kGradients};
  const size_t head = sizeof(uint32_t) * merges_.size();
  if (block.size() < head) {
    return RefuseBlock(
        id, rank,
        absl::StrCat(block.size(), " bytes, where the step is hot and ", head, " begin the block"),
        exchange_);
  }
  const auto* const sizes = reinterpret_cast<const uint32_t*>(block.data());
  size_t expected = head;
  for (size_t t = 0; t < merges_.size(); ++t) {
    expected += sizes[t] * KeyBytes(rows_->tables()[t]);
  }
  RETURN_IF_ERROR(CheckSize(id, rank, block.size(), expected, exchange_));
  const uint8_t* from = block.data() + head;
  for (size_t t = 0; t < merges_.size(); ++t) {
    const size_t n = sizes[t], floats = n * rows_->tables()[t].dim;
    const auto* const numbers = reinterpret_cast<const uint32_t*>(from);
    Received& received = received_[t][rank];
    received.keys.assign(numbers, numbers + n);
    received.block.keys = received.keys;
    received.block.counts = absl::MakeConstSpan(numbers + n, n);
    received.block.gradients =
        absl::MakeConstSpan(reinterpret_cast<const float*>(numbers + 2 * n), floats);
    from += n * KeyBytes(rows_->tables()[t]);
    for (const Key number : received.keys) {
      if (number < rows_->keys(t).size()) continue;
      return RefuseBlock(id, rank,
                         absl::StrCat("hot row ", number, " of table '", rows_->tables()[t].name,
                                      "', which has ", rows_->keys(t).size()),
                         exchange_);
    }
  }
  return absl::OkStatus();
}

absl::Status HotGradients::Merge(Step step) {
  ASSIGN_OR_RETURN(const ReceivedBlocks blocks, exchange_->Receive({step, Phase::kGradients}));
  for (uint32_t rank = 0; rank < blocks.size(); ++rank) {
    RETURN_IF_ERROR(Parse(step, rank, blocks.from(WorkerRank(rank))));
  }
  std::vector<GradientBlock> of_ranks(blocks.size());
  for (size_t t = 0; t < merges_.size(); ++t) {
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      of_ranks[rank] = received_[t][rank].block;
    }
    merges_[t].Run(of_ranks, rows_->tables()[t].dim);
    RETURN_IF_ERROR(CheckFinite(step, rows_->tables()[t], merged(t).gradients,
                                "the sum of all workers' gradients",
                                [&](size_t i) { return rows_->keys(t)[merged(t).keys[i]]; }));
  }
  return absl::OkStatus();
}

absl::Status HotGradients::ReceiveNone(Step step) {
  const BlockId id = {step, Phase::kGradients};
  ASSIGN_OR_RETURN(const ReceivedBlocks blocks, exchange_->Receive(id));
  for (uint32_t rank = 0; rank < blocks.size(); ++rank) {
    RETURN_IF_ERROR(CheckSize(id, rank, blocks.from(WorkerRank(rank)).size(), 0, exchange_));
  }
  return absl::OkStatus();
}

}  // namespace thermocline
