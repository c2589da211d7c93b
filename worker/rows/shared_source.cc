#include "worker/rows/shared_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/completion.h"
#include "common/base/status_macros.h"
#include "common/math/table_spec.h"
#include "kernels/transfer.h"
#include "worker/rows/row_gradients.h"

namespace thermocline {
namespace {

// Of a push: bypassed gradients and evicted rows are wave 0; these come once the rows are updated.
constexpr size_t kUpdatedRowsWave = 1;

size_t BytesOf(size_t rows, int dim) { return sizeof(float) * rows * dim; }

}  // namespace

struct SharedSource::TableOfStep {
  UploadArena::Array<float> rows;         // [num_unique, dim] the bypassed, then the asked for
  DownloadArena::Array<float> gradients;  // [num_unique, dim], at first in staging order
  // The owner's, [its keys]:
  DeviceSpan<const int32_t> held_rows;  // of the slab, on the device
  DownloadArena::Array<float> read;     // [held, dim]
  UploadArena::Array<float> merged;     // [held, dim] gradients
};

struct SharedSource::OfStep {
  std::vector<TableOfStep> tables;
  OwnedRows::OfStep held;
  StepTransfers* transfers = nullptr;  // the owner's; until the push is acknowledged
  std::vector<RowCopy> written_ahead;  // gathers to be queued after the update
  Completion fetched;
};

SharedSource::SharedSource(const CachedSourceOptions& options, Exchange* exchange,
                           PsSession* session, Device* device)
    : options_(options),
      exchange_(exchange),
      session_(session),
      device_(device),
      uncached_(options, session, device),
      rows_(options, session, device) {
  CHECK(options.shares_rows);
  CHECK_EQ(options.staleness_steps, 0u);
}

SharedSource::~SharedSource() = default;

StepTransfers* SharedSource::TakeTransfers() {
  StepTransfers* taken = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (!idle_transfers_.empty()) {
      taken = idle_transfers_.back();
      idle_transfers_.pop_back();
    }
  }
  if (taken == nullptr) {
    taken = transfers_.emplace_back(std::make_unique<StepTransfers>(device_)).get();
  }
  largest_transfers_.Cover(*taken);
  taken->upload.Clear(largest_transfers_.upload);
  taken->download.Clear(largest_transfers_.download);
  return taken;
}

void SharedSource::Fetch(const std::shared_ptr<StepContext>& context,
                         const std::vector<std::vector<PullSlice>>& dense) {
  CHECK(context->has_cache_plan);
  SharedPlan& plan = context->of_cache.Get<SharedPlan>();
  OfStep& step = context->of_source.Get<OfStep>();
  step.tables.resize(options_.tables.size());
  step.transfers = TakeTransfers();
  const auto after = [this](Step push, PullWork* pull) {
    pull->after_step = std::max(push, options_.start_step - 1);
    pull->step = pull->after_step + 1;
  };
  PullWork loaded = rows_.Begin(&context->cache_plan, step.transfers, &step.held);
  after(context->cache_plan.pushed_through, &loaded);
  // Rows of other tables, and dense parameters, may change in every step.
  PullWork bypassed, latest;
  after(plan.pushed_through, &bypassed);
  after(context->step() - 1, &latest);
  bypassed.slices.resize(options_.num_servers);
  latest.slices.resize(options_.num_servers);
  for (size_t t = 0; t < step.tables.size(); ++t) {
    const SharedPlan::Bypassed& keys = plan.tables[t].bypassed;
    const size_t dim = options_.tables[t].dim;
    UploadArena::Array<float>& rows = step.tables[t].rows;
    rows = context->upload().Reserve<float>(context->plan.tables[t].keys.size() * dim);
    AddPullSlices(SharesOf(options_.tables[t].id, keys), rows.host.subspan(0, keys.size() * dim),
                  IsShared(t) ? &bypassed.slices : &latest.slices);
  }
  AddPullSlices(dense, &latest.slices);
  std::vector<PullWork> pulls;
  pulls.push_back(std::move(loaded));
  pulls.push_back(std::move(bypassed));
  pulls.push_back(std::move(latest));
  StartPulls(session_, std::move(pulls), context, &step.fetched);
}

absl::Status SharedSource::Await(StepContext* context) {
  if (!context->has_cache_plan) return uncached_.Await(context);
  OfStep& step = context->of_source.Get<OfStep>();
  RETURN_IF_ERROR(step.fetched.Wait());
  context->complete_through = context->step() - 1;
  RETURN_IF_ERROR(SendRows(context));
  RETURN_IF_ERROR(TakeRows(context));
  context->tables.resize(options_.tables.size());
  for (size_t t = 0; t < context->tables.size(); ++t) {
    TableOfStep& table = step.tables[t];
    const int32_t num_unique = context->plan.tables[t].num_unique();
    const int dim = options_.tables[t].dim;
    table.gradients = context->download().Add<float>(table.rows.host.size());
    // Rows are only read.
    context->tables[t].rows =
        FloatMatrix(const_cast<float*>(table.rows.device.data), num_unique, dim);
    context->tables[t].gradients = FloatMatrix(table.gradients.device.data, num_unique, dim);
  }
  SendUploads(device_, context);
  return absl::OkStatus();
}

absl::Status SharedSource::WaitForDevice(StepTransfers* transfers) {
  device_->Record(Stream::kCompute, transfers->finished.get());
  return transfers->finished->Wait();
}

// As an owner: brings the slabs to what the plan says, and sends each rank the rows that it asked
// for.
absl::Status SharedSource::SendRows(StepContext* context) {
  const SharedPlan& plan = context->of_cache.Get<SharedPlan>();
  OfStep& step = context->of_source.Get<OfStep>();
  std::vector<RowCopy> gathers, scatters, reads;
  rows_.Place(context->complete_through, &step.held, &gathers, &scatters);
  for (size_t t = 0; t < step.tables.size(); ++t) {
    TableOfStep& table = step.tables[t];
    const int dim = options_.tables[t].dim;
    const auto held = static_cast<int32_t>(plan.held_rows[t].size());
    table.held_rows = step.transfers->upload.Add(absl::MakeConstSpan(plan.held_rows[t]));
    table.read = step.transfers->download.Add<float>(size_t{1} * held * dim);
    if (held == 0) continue;
    reads.push_back({rows_.SlabOf(t).Rows(dim), table.held_rows,
                     FloatMatrix(table.read.device.data, held, dim)});
  }
  step.transfers->upload.Send(Stream::kCompute);
  device_->GatherRows(gathers);
  device_->ScatterRows(scatters);
  device_->GatherRows(reads);
  step.transfers->download.Send(Stream::kCompute);
  RETURN_IF_ERROR(WaitForDevice(step.transfers));

  std::vector<Block> blocks(exchange_->num_ranks());
  for (uint32_t rank = 0; rank < blocks.size(); ++rank) {
    size_t bytes = 0;
    for (size_t t = 0; t < step.tables.size(); ++t) {
      bytes += BytesOf(plan.requested[t].positions[rank].size(), options_.tables[t].dim);
    }
    const auto block = std::make_shared<BlockBytes>(bytes);
    uint8_t* to = block->data();
    for (size_t t = 0; t < step.tables.size(); ++t) {
      const size_t row_bytes = BytesOf(1, options_.tables[t].dim);
      const float* const read = step.tables[t].read.host.data();
      for (const int32_t position : plan.requested[t].positions[rank]) {
        std::memcpy(to, read + size_t{1} * position * options_.tables[t].dim, row_bytes);
        to += row_bytes;
      }
    }
    blocks[rank].bytes = block;
  }
  return exchange_->Post({context->step(), Phase::kRows}, std::move(blocks));
}

// Puts the rows that the owners send behind those pulled.
absl::Status SharedSource::TakeRows(StepContext* context) {
  const SharedPlan& plan = context->of_cache.Get<SharedPlan>();
  OfStep& step = context->of_source.Get<OfStep>();
  const BlockId id = {context->step(), Phase::kRows};
  ASSIGN_OR_RETURN(const ReceivedBlocks blocks, exchange_->Receive(id));
  for (uint32_t owner = 0; owner < blocks.size(); ++owner) {
    const absl::Span<const uint8_t> block = blocks.from(WorkerRank(owner));
    size_t expected = 0;
    for (size_t t = 0; t < step.tables.size(); ++t) {
      expected += BytesOf(plan.tables[t].CountOf(owner), options_.tables[t].dim);
    }
    RETURN_IF_ERROR(CheckSize(id, owner, block.size(), expected, exchange_));
    const uint8_t* from = block.data();
    for (size_t t = 0; t < step.tables.size(); ++t) {
      const SharedPlan::Table& table = plan.tables[t];
      const size_t bytes = BytesOf(table.CountOf(owner), options_.tables[t].dim);
      if (bytes == 0) continue;
      const size_t first = size_t{1} * table.bypassed.size() + table.owner_begin[owner];
      std::memcpy(step.tables[t].rows.host.data() + first * options_.tables[t].dim, from, bytes);
      from += bytes;
    }
  }
  return absl::OkStatus();
}

void SharedSource::Update(StepContext* context) { context->download().Send(Stream::kCompute); }

// Sends the owners the gradients of the rows that they hold.
absl::Status SharedSource::SendGradients(StepContext* context) {
  const SharedPlan& plan = context->of_cache.Get<SharedPlan>();
  const OfStep& step = context->of_source.Get<OfStep>();
  std::vector<Block> blocks(exchange_->num_ranks());
  for (uint32_t owner = 0; owner < blocks.size(); ++owner) {
    size_t floats = 0;
    for (size_t t = 0; t < step.tables.size(); ++t) {
      floats += size_t{1} * plan.tables[t].CountOf(owner) * options_.tables[t].dim;
    }
    const auto block = std::make_shared<BlockBytes>(sizeof(float) * floats);
    auto* to = reinterpret_cast<float*>(block->data());
    for (size_t t = 0; t < step.tables.size(); ++t) {
      const SharedPlan::Table& table = plan.tables[t];
      const size_t dim = options_.tables[t].dim;
      const auto asked =
          absl::MakeConstSpan(table.asked).subspan(table.owner_begin[owner], table.CountOf(owner));
      float* const first = to;
      for (const int32_t u : asked) {
        const float* const gradient = step.tables[t].gradients.host.data() + u * dim;
        to = std::copy(gradient, gradient + dim, to);
      }
      RETURN_IF_ERROR(CheckFinite(
          context->step(), options_.tables[t], absl::MakeConstSpan(first, to - first),
          "the gradient", [&](size_t i) { return context->plan.tables[t].keys[asked[i]]; }));
    }
    blocks[owner].bytes = block;
  }
  return exchange_->Post({context->step(), Phase::kGradients}, std::move(blocks));
}

// The gradients of bypassed keys come to the front, server by server. The others are sent already.
void SharedSource::PackBypassed(StepContext* context) {
  const SharedPlan& plan = context->of_cache.Get<SharedPlan>();
  OfStep& step = context->of_source.Get<OfStep>();
  for (size_t t = 0; t < step.tables.size(); ++t) {
    const size_t dim = options_.tables[t].dim;
    float* const gradients = step.tables[t].gradients.host.data();
    float* to = gradients;
    for (const int32_t u : plan.tables[t].bypassed.positions) {
      std::memmove(to, gradients + u * dim, sizeof(float) * dim);
      to += dim;
    }
  }
}

absl::Status SharedSource::Push(const std::shared_ptr<StepContext>& context,
                                std::vector<std::vector<wire::PushSlice>> dense) {
  const SharedPlan& plan = context->of_cache.Get<SharedPlan>();
  OfStep& step = context->of_source.Get<OfStep>();
  RETURN_IF_ERROR(SendGradients(context.get()));
  PackBypassed(context.get());
  // Which rows the step writes depends on its keys alone.
  step.written_ahead.clear();
  for (size_t t = 0; t < step.tables.size(); ++t) {
    rows_.NoteUpdates(t, plan.held_rows[t], plan.requested[t].counts);
  }
  rows_.WriteAhead(&step.held, &step.written_ahead);
  PushWork push;
  push.step = context->step();
  push.learning_rate = context->learning_rate;
  push.waves.resize(2, std::vector<std::vector<wire::PushSlice>>(options_.num_servers));
  for (size_t t = 0; t < step.tables.size(); ++t) {
    const SharedPlan::Bypassed& keys = plan.tables[t].bypassed;
    AddPushSlices(
        SharesOf(options_.tables[t].id, keys), wire::PushKind::kGradient, keys.counts,
        step.tables[t].gradients.host.subspan(0, size_t{1} * keys.size() * options_.tables[t].dim),
        &push.waves[0]);
  }
  rows_.AddEvicted(step.held, &push.waves[0]);
  rows_.AddWrittenAhead(step.held, &push.waves[kUpdatedRowsWave]);
  const std::shared_ptr<StepContext> until_acknowledged(
      context.get(), [this, context, transfers = step.transfers](StepContext*) {
        absl::MutexLock lock(&mutex_);
        idle_transfers_.push_back(transfers);
      });
  rows_.StartPush(until_acknowledged, std::move(push), std::move(dense), &step.held);
  return session_->ReleaseWave(context->step(), 0);
}

absl::Status SharedSource::FinishPush(StepContext* context) {
  OfStep& step = context->of_source.Get<OfStep>();
  RETURN_IF_ERROR(UpdateHeld(context));
  RETURN_IF_ERROR(session_->ReleaseWave(context->step(), kUpdatedRowsWave));
  RETURN_IF_ERROR(rows_.SendPieces(context->step(), &step.held));
  return rows_.FinishPush(context->step(), &step.held);
}

// As an owner: one update of each row held, with the sum of the ranks' gradients.
absl::Status SharedSource::UpdateHeld(StepContext* context) {
  OfStep& step = context->of_source.Get<OfStep>();
  {
    ASSIGN_OR_RETURN(const ReceivedBlocks gradients,
                     exchange_->Receive({context->step(), Phase::kGradients}));
    RETURN_IF_ERROR(MergeGradients(context, gradients));
  }
  std::vector<RowUpdateGroup> updates;
  for (size_t t = 0; t < step.tables.size(); ++t) {
    const TableOfStep& table = step.tables[t];
    // The device only reads the gradients.
    const Matrix merged =
        FloatMatrix(const_cast<float*>(table.merged.device.data),
                    static_cast<int32_t>(table.held_rows.size), options_.tables[t].dim);
    updates.push_back(rows_.UpdateOf(t, *context, merged, table.held_rows));
  }
  step.transfers->upload.Send(Stream::kCompute);
  device_->SparseUpdate(updates);
  device_->GatherRows(step.written_ahead);
  step.transfers->download.Send(Stream::kCompute);
  return WaitForDevice(step.transfers);
}

absl::Status SharedSource::MergeGradients(StepContext* context, const ReceivedBlocks& gradients) {
  const SharedPlan& plan = context->of_cache.Get<SharedPlan>();
  OfStep& step = context->of_source.Get<OfStep>();
  std::vector<absl::Span<const float>> left;  // [ranks] of its block
  for (uint32_t rank = 0; rank < gradients.size(); ++rank) {
    const absl::Span<const uint8_t> block = gradients.from(WorkerRank(rank));
    size_t expected = 0;
    for (size_t t = 0; t < step.tables.size(); ++t) {
      expected += BytesOf(plan.requested[t].positions[rank].size(), options_.tables[t].dim);
    }
    RETURN_IF_ERROR(
        CheckSize({context->step(), Phase::kGradients}, rank, block.size(), expected, exchange_));
    left.emplace_back(reinterpret_cast<const float*>(block.data()), block.size() / sizeof(float));
  }
  std::vector<absl::Span<const float>> of_table(left.size());
  for (size_t t = 0; t < step.tables.size(); ++t) {
    const RequestedKeys& requested = plan.requested[t];
    const int dim = options_.tables[t].dim;
    for (size_t rank = 0; rank < left.size(); ++rank) {
      const size_t floats = requested.positions[rank].size() * dim;
      of_table[rank] = left[rank].subspan(0, floats);
      left[rank].remove_prefix(floats);
    }
    UploadArena::Array<float>& merged = step.tables[t].merged;
    merged = step.transfers->upload.Reserve<float>(requested.keys.size() * dim);
    MergeRequested(requested, of_table, dim, merged.host);
    RETURN_IF_ERROR(CheckFinite(context->step(), options_.tables[t], merged.host,
                                "the sum of all workers' gradients",
                                [&](size_t i) { return requested.keys[i]; }));
  }
  return absl::OkStatus();
}

void SharedSource::FetchForEvaluation(const std::shared_ptr<StepContext>& context, Step step) {
  uncached_.FetchForEvaluation(context, step);
}

}  // namespace thermocline
