// The route of several workers that hold the same rows: in a step of theirs every rank sends its
// gradients to all ranks, and all of them make the same sums, in rank order, as a server does. So
// their rows stay the same, bit by bit. Such a step pushes no row, until one writes back: then each
// rank brings the servers those rows that changed since and whose owner it is, which is
// ClusterMap's choice among the ranks.
//
// What travels in phase kGradients, little-endian:
//   these steps  uint32 [tables] distinct keys of the sender's batch; then of each table
//                uint32 [keys] number of the hot row in its table (hot_rows.h)
//                uint32 [keys] lookups
//                float32 [keys, dim] gradients
//   others       nothing: an empty block
//
// The push of a step that writes back is whole only when this rank has all that others sent it, so
// that they may leave (Exchange::Leave).
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/base/uninitialized_vector.h"
#include "common/math/gradient_merge.h"
#include "worker/rows/hot_rows.h"
#include "worker/rows/row_gradients.h"
#include "worker/rows/row_planner.h"
#include "worker/rows/row_route.h"

namespace thermocline {
namespace {

// The number of a key, its lookups, and its gradient in a block.
size_t KeyBytes(const TableLayout& table) {
  return 2 * sizeof(uint32_t) + sizeof(float) * table.dim;
}

absl::Status PostToAll(Step step, BlockBytes bytes, Exchange* exchange) {
  Block block;
  block.bytes = std::make_shared<BlockBytes>(std::move(bytes));
  return exchange->Post({step, Phase::kGradients},
                        std::vector<Block>(exchange->num_ranks(), block));
}

class AllRoute : public RowRoute {
 public:
  explicit AllRoute(const RouteParts& parts)
      : parts_(parts),
        rows_(*parts.options.fixed_rows),
        received_(num_tables(), std::vector<Received>(parts.exchange->num_ranks())),
        merges_(num_tables()),
        transfers_(parts.device) {
    parts.device->Record(Stream::kCompute, transfers_.finished.get());
  }

  absl::Status Place(StepContext* context, StepTasks*) override {
    context->complete_through = context->step() - 1;
    context->tables.resize(num_tables());
    for (size_t t = 0; t < num_tables(); ++t) {
      context->tables[t].rows = parts_.slabs->SlabOf(t).Rows(TableOf(t).dim);
    }
    PlaceGradients(parts_.options, context);
    SendUploads(parts_.device, context);
    return absl::OkStatus();
  }
  void Update(StepContext* context) override { context->download().Send(Stream::kCompute); }

  // What a step writes back includes its own updates, so those come before.
  absl::Status Push(StepContext* context, StepTasks* tasks) override {
    RETURN_IF_ERROR(PostGradients(*context));
    if (context->writes_back) UpdateAll(context, tasks);
    return absl::OkStatus();
  }
  // Other workers wait for this one's dense gradients before it waits for theirs of rows.
  void FinishPush(StepContext* context, StepTasks* tasks) override {
    if (!context->writes_back) UpdateAll(context, tasks);
  }

 private:
  // One rank's block, of one table. The spans lie in the block.
  struct Received {
    UninitializedVector<Key> keys;
    GradientBlock block;
  };

  size_t num_tables() const { return parts_.options.tables.size(); }
  const TableLayout& TableOf(size_t t) const { return parts_.options.tables[t]; }
  absl::Status PostGradients(const StepContext& context);
  void UpdateAll(StepContext* context, StepTasks* tasks);
  absl::Status Merge(Step step, const ReceivedBlocks& blocks);
  absl::Status Parse(Step step, uint32_t rank, absl::Span<const uint8_t> block);
  void UpdateRows(const StepContext& context);
  void NoteOwnUpdates(size_t t, absl::Span<const int32_t> rows, absl::Span<const uint32_t> counts);

  const RouteParts parts_;
  const HotRows& rows_;
  std::vector<std::vector<Received>> received_;  // [tables][ranks]
  std::vector<GradientMerge> merges_;            // [tables] keys are numbers of hot rows
  StepTransfers transfers_;                      // the sums, on their way to the device
  std::vector<int32_t> own_rows_;
  std::vector<uint32_t> own_counts_;
};

absl::Status AllRoute::PostGradients(const StepContext& context) {
  size_t bytes = sizeof(uint32_t) * num_tables();
  for (size_t t = 0; t < num_tables(); ++t) {
    const UninitializedVector<Key>& keys = context.plan.tables[t].keys;
    RETURN_IF_ERROR(CheckFinite(context.step(), TableOf(t),
                                context.table_transfers[t].gradients.host, "the gradient",
                                [&](size_t u) { return keys[u]; }));
    bytes += keys.size() * KeyBytes(TableOf(t));
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
  for (size_t t = 0; t < num_tables(); ++t) {
    numbers.clear();
    for (const int32_t row : context.row_plan.cache.tables[t].rows) {
      numbers.push_back(static_cast<uint32_t>(row - rows_.first_row(t)));
    }
    add(numbers);
    add(context.plan.tables[t].counts);
    add(context.table_transfers[t].gradients.host);
  }
  return PostToAll(context.step(), std::move(block), parts_.exchange);
}

// One update of each row that any rank's batch reads, with the sum of the ranks' gradients.
void AllRoute::UpdateAll(StepContext* context, StepTasks* tasks) {
  const BlockId id = {context->step(), Phase::kGradients};
  tasks->After(StepWait::For(id), [this, context, tasks, id] {
    ASSIGN_OR_RETURN(const ReceivedBlocks blocks, parts_.exchange->Receive(id));
    RETURN_IF_ERROR(Merge(id.step, blocks));
    tasks->After(StepWait::For(transfers_.finished.get()), [this, context] {
      UpdateRows(*context);
      return absl::OkStatus();
    });
    return absl::OkStatus();
  });
}

absl::Status AllRoute::Merge(Step step, const ReceivedBlocks& blocks) {
  for (uint32_t rank = 0; rank < blocks.size(); ++rank) {
    RETURN_IF_ERROR(Parse(step, rank, blocks.from(WorkerRank(rank))));
  }
  std::vector<GradientBlock> of_ranks(blocks.size());
  for (size_t t = 0; t < num_tables(); ++t) {
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      of_ranks[rank] = received_[t][rank].block;
    }
    merges_[t].Run(of_ranks, TableOf(t).dim);
    const GradientBlock& merged = merges_[t].result();
    RETURN_IF_ERROR(CheckFinite(step, TableOf(t), merged.gradients,
                                "the sum of all workers' gradients",
                                [&](size_t i) { return rows_.keys(t)[merged.keys[i]]; }));
  }
  return absl::OkStatus();
}

absl::Status AllRoute::Parse(Step step, uint32_t rank, absl::Span<const uint8_t> block) {
  const BlockId id = {step, Phase::kGradients};
  const size_t head = sizeof(uint32_t) * num_tables();
  if (block.size() < head) {
    return RefuseBlock(
        id, rank,
        absl::StrCat(block.size(), " bytes, where the step is hot and ", head, " begin the block"),
        parts_.exchange);
  }
  const auto* const sizes = reinterpret_cast<const uint32_t*>(block.data());
  size_t expected = head;
  for (size_t t = 0; t < num_tables(); ++t) expected += sizes[t] * KeyBytes(TableOf(t));
  RETURN_IF_ERROR(CheckSize(id, rank, block.size(), expected, parts_.exchange));
  const uint8_t* from = block.data() + head;
  for (size_t t = 0; t < num_tables(); ++t) {
    const size_t n = sizes[t], floats = n * TableOf(t).dim;
    const auto* const numbers = reinterpret_cast<const uint32_t*>(from);
    Received& received = received_[t][rank];
    received.keys.assign(numbers, numbers + n);
    received.block.keys = received.keys;
    received.block.counts = absl::MakeConstSpan(numbers + n, n);
    received.block.gradients =
        absl::MakeConstSpan(reinterpret_cast<const float*>(numbers + 2 * n), floats);
    from += n * KeyBytes(TableOf(t));
    for (const Key number : received.keys) {
      if (number < rows_.keys(t).size()) continue;
      return RefuseBlock(id, rank,
                         absl::StrCat("hot row ", number, " of table '", TableOf(t).name,
                                      "', which has ", rows_.keys(t).size()),
                         parts_.exchange);
    }
  }
  return absl::OkStatus();
}

void AllRoute::UpdateRows(const StepContext& context) {
  transfers_.upload.Clear();
  std::vector<RowUpdateGroup> updates;
  for (size_t t = 0; t < num_tables(); ++t) {
    const GradientBlock& merged = merges_[t].result();
    const auto n = static_cast<int32_t>(merged.keys.size());
    const auto rows = transfers_.upload.Reserve<int32_t>(n);
    const auto gradients = transfers_.upload.Reserve<float>(merged.gradients.size());
    for (int32_t i = 0; i < n; ++i) {
      rows.host[i] = rows_.first_row(t) + static_cast<int32_t>(merged.keys[i]);
    }
    std::copy(merged.gradients.begin(), merged.gradients.end(), gradients.host.begin());
    // The device only reads the gradients.
    parts_.slabs->AppendUpdatesOf(
        t, context, FloatMatrix(const_cast<float*>(gradients.device.data), n, TableOf(t).dim),
        rows.device, &updates);
    NoteOwnUpdates(t, rows.host, merged.counts);
  }
  transfers_.upload.Send(Stream::kCompute);
  parts_.device->SparseUpdate(updates);
  parts_.device->Record(Stream::kCompute, transfers_.finished.get());
}

// Notes the updates of the rows whose owner this rank is: it alone writes them back.
void AllRoute::NoteOwnUpdates(size_t t, absl::Span<const int32_t> rows,
                              absl::Span<const uint32_t> counts) {
  const ClusterMap owners(parts_.exchange->num_ranks());
  const uint64_t salt = TableSalt(TableOf(t).id);
  const HeldRows& held = parts_.slabs->SlabOf(t).held();
  own_rows_.clear();
  own_counts_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint64_t hash = KeyHash(salt, held.key(rows[i]));
    if (owners.ServerOfHash(hash).value() != parts_.exchange->rank().value()) continue;
    own_rows_.push_back(rows[i]);
    own_counts_.push_back(counts[i]);
  }
  parts_.slabs->NoteUpdates(t, own_rows_, own_counts_);
}

class ServerRouteBesideAll : public ServerRoute {
 public:
  using ServerRoute::ServerRoute;

  absl::Status Push(StepContext* context, StepTasks* tasks) override {
    RETURN_IF_ERROR(PostToAll(context->step(), {}, parts_.exchange));
    if (context->writes_back) ReceiveNone(context->step(), tasks);
    return ServerRoute::Push(context, tasks);
  }
  void FinishPush(StepContext* context, StepTasks* tasks) override {
    if (!context->writes_back) ReceiveNone(context->step(), tasks);
  }

 private:
  void ReceiveNone(Step step, StepTasks* tasks) {
    const BlockId id = {step, Phase::kGradients};
    tasks->After(StepWait::For(id), [this, id] {
      ASSIGN_OR_RETURN(const ReceivedBlocks blocks, parts_.exchange->Receive(id));
      for (uint32_t rank = 0; rank < blocks.size(); ++rank) {
        const size_t bytes = blocks.from(WorkerRank(rank)).size();
        RETURN_IF_ERROR(CheckSize(id, rank, bytes, 0, parts_.exchange));
      }
      return absl::OkStatus();
    });
  }
};

}  // namespace

std::unique_ptr<RowRoute> MakeAllRoute(const RouteParts& parts) {
  return std::make_unique<AllRoute>(parts);
}

std::unique_ptr<RowRoute> MakeServerRouteBesideAll(const RouteParts& parts) {
  return std::make_unique<ServerRouteBesideAll>(parts);
}

}  // namespace thermocline
