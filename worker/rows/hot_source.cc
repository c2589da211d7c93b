#include "worker/rows/hot_source.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/completion.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

CachedSourceOptions OwnedOptions(const HotSourceOptions& options) {
  CachedSourceOptions owned = {options};
  owned.shares_rows = options.num_workers > 1;
  owned.start_step = options.start_step;
  owned.layout = options.hot_rows->layout();
  owned.window_steps = 1;
  owned.prefetch_steps = 0;
  owned.write_back_piece_bytes = options.write_back_piece_bytes;
  return owned;
}

}  // namespace

// Of a hot step.
struct HotSource::OfStep {
  OwnedRows::OfStep held;
  bool loads = false;
  std::vector<DeviceSpan<const int32_t>> rows;         // one worker: the plan's, on the device
  std::vector<DownloadArena::Array<float>> gradients;  // several: [tables][num_unique, dim]
  Completion fetched;
};

HotSource::HotSource(const HotSourceOptions& options, Exchange* exchange, PsSession* session,
                     Device* device)
    : options_(options),
      exchange_(exchange),
      session_(session),
      device_(device),
      remote_(options, session, device),
      rows_(OwnedOptions(options), session, device),
      loader_(options.hot_rows, options.load_piece_bytes, &rows_, session, device),
      gradients_(options.tables, device),
      merged_(device) {
  CHECK_EQ(options.staleness_steps, 0u);
  CHECK_EQ(options.num_workers > 1, exchange != nullptr);
  if (is_alone()) return;
  exchanged_ = std::make_unique<HotGradients>(options.hot_rows, exchange);
  device->Record(Stream::kCompute, merged_.finished.get());
}

HotSource::~HotSource() = default;

void HotSource::Fetch(const std::shared_ptr<StepContext>& context,
                      const std::vector<std::vector<PullSlice>>& dense) {
  if (!context->has_cache_plan) {
    is_loaded_ = false;
    CountCold(*context);
    remote_.Fetch(context, dense);
    return;
  }
  OfStep& step = context->of_source.Get<OfStep>();
  step.loads = !std::exchange(is_loaded_, true);
  context->cache_plan.pushed_through = step.loads ? context->step() - 1 : kNoStep;
  rows_.Count(context->cache_plan.counts);
  PullWork pull;
  pull.after_step = std::max(AwaitsPushOf(*context), options_.start_step - 1);
  pull.step = pull.after_step + 1;
  pull.slices.resize(options_.num_servers);
  AddPullSlices(dense, &pull.slices);
  StartPulls(session_, {std::move(pull)}, context, &step.fetched);
}

void HotSource::CountCold(const StepContext& context) {
  CacheCounts counts;
  for (const TablePlan& table : context.plan.tables) counts.bypassed += table.num_unique();
  counts.rows_held = rows_.counts().rows_held;  // They keep their places, if not their values.
  rows_.Count(counts);
}

Step HotSource::AwaitsPushOf(const StepContext& context) const {
  if (!context.has_cache_plan) return remote_.AwaitsPushOf(context);
  return is_alone() ? context.cache_plan.pushed_through : context.step() - 1;
}

absl::Status HotSource::Await(StepContext* context) {
  if (!context->has_cache_plan) {
    // The servers have every row.
    for (size_t t = 0; t < options_.tables.size(); ++t) {
      CHECK_EQ(rows_.SlabOf(t).held().num_unwritten(), 0);
    }
    return remote_.Await(context);
  }
  OfStep& step = context->of_source.Get<OfStep>();
  RETURN_IF_ERROR(step.fetched.Wait());
  if (step.loads) RETURN_IF_ERROR(loader_.Load(context->step()));
  context->complete_through = context->step() - 1;
  const size_t num_tables = options_.tables.size();
  context->tables.resize(num_tables);
  step.rows.resize(num_tables);
  step.gradients.resize(num_tables);
  if (is_alone()) RETURN_IF_ERROR(gradients_.Place(context));
  for (size_t t = 0; t < num_tables; ++t) {
    const int dim = options_.tables[t].dim;
    context->tables[t].rows = rows_.SlabOf(t).Rows(dim);
    if (is_alone()) {
      step.rows[t] = context->upload().Add(absl::MakeConstSpan(context->cache_plan.tables[t].rows));
      continue;
    }
    const int32_t num_unique = context->plan.tables[t].num_unique();
    step.gradients[t] = context->download().Add<float>(size_t{1} * num_unique * dim);
    context->tables[t].gradients = FloatMatrix(step.gradients[t].device.data, num_unique, dim);
  }
  SendUploads(device_, context);
  return absl::OkStatus();
}

void HotSource::Update(StepContext* context) {
  if (!context->has_cache_plan) return remote_.Update(context);
  if (is_alone()) {
    const OfStep& step = context->of_source.Get<OfStep>();
    std::vector<RowUpdateGroup> updates;
    for (size_t t = 0; t < context->tables.size(); ++t) {
      updates.push_back(rows_.UpdateOf(t, *context, context->tables[t].gradients, step.rows[t]));
      rows_.NoteUpdates(t, context->cache_plan.tables[t].rows, context->plan.tables[t].counts);
    }
    gradients_.FindBad(context);
    device_->SparseUpdate(updates);
  }
  context->download().Send(Stream::kCompute);
}

// What a step writes back includes its own updates, so those of several workers come before.
absl::Status HotSource::Push(const std::shared_ptr<StepContext>& context,
                             std::vector<std::vector<wire::PushSlice>> dense) {
  if (!context->has_cache_plan) return PushCold(context, std::move(dense));
  if (is_alone()) {
    RETURN_IF_ERROR(gradients_.Check(*context));
  } else {
    RETURN_IF_ERROR(PostGradients(context.get()));
    if (context->writes_back) RETURN_IF_ERROR(UpdateAll(*context));
  }
  OfStep& step = context->of_source.Get<OfStep>();
  PushWork push;
  push.step = context->step();
  push.learning_rate = context->learning_rate;
  push.waves.emplace_back(options_.num_servers);
  rows_.StartPush(context, std::move(push), std::move(dense), &step.held);
  RETURN_IF_ERROR(session_->ReleaseWave(context->step(), 0));
  // Other workers wait for this one's dense gradients first.
  return is_alone() ? rows_.SendPieces(context->step(), &step.held) : absl::OkStatus();
}

absl::Status HotSource::FinishPush(StepContext* context) {
  if (!context->has_cache_plan) {
    if (is_alone() || context->writes_back) return absl::OkStatus();
    return exchanged_->ReceiveNone(context->step());
  }
  OfStep& step = context->of_source.Get<OfStep>();
  if (!is_alone()) {
    if (!context->writes_back) RETURN_IF_ERROR(UpdateAll(*context));
    RETURN_IF_ERROR(rows_.SendPieces(context->step(), &step.held));
  }
  return rows_.FinishPush(context->step(), &step.held);
}

// The last step writes back: by the time its push is whole, this rank has all that others sent it,
// so that they may leave (Exchange::Leave).
absl::Status HotSource::PushCold(const std::shared_ptr<StepContext>& context,
                                 std::vector<std::vector<wire::PushSlice>> dense) {
  if (!is_alone()) RETURN_IF_ERROR(exchanged_->PostNone(context->step()));
  if (!is_alone() && context->writes_back) {
    RETURN_IF_ERROR(exchanged_->ReceiveNone(context->step()));
  }
  return remote_.Push(context, std::move(dense));
}

absl::Status HotSource::PostGradients(StepContext* context) {
  std::vector<absl::Span<const float>> gradients;
  for (const auto& of_table : context->of_source.Get<OfStep>().gradients) {
    gradients.push_back(of_table.host);
  }
  return exchanged_->Post(*context, gradients);
}

// One update of each row that any rank's batch reads, with the sum of the ranks' gradients.
absl::Status HotSource::UpdateAll(const StepContext& context) {
  RETURN_IF_ERROR(exchanged_->Merge(context.step()));
  RETURN_IF_ERROR(merged_.finished->Wait());
  merged_.upload.Clear();
  std::vector<RowUpdateGroup> updates;
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    const GradientBlock& merged = exchanged_->merged(t);
    const auto n = static_cast<int32_t>(merged.keys.size());
    const auto rows = merged_.upload.Reserve<int32_t>(n);
    const auto gradients = merged_.upload.Reserve<float>(merged.gradients.size());
    for (int32_t i = 0; i < n; ++i) {
      rows.host[i] = options_.hot_rows->first_row(t) + static_cast<int32_t>(merged.keys[i]);
    }
    std::copy(merged.gradients.begin(), merged.gradients.end(), gradients.host.begin());
    // The device only reads the gradients.
    updates.push_back(rows_.UpdateOf(
        t, context,
        FloatMatrix(const_cast<float*>(gradients.device.data), n, options_.tables[t].dim),
        rows.device));
    NoteOwnUpdates(t, rows.host, merged.counts);
  }
  merged_.upload.Send(Stream::kCompute);
  device_->SparseUpdate(updates);
  device_->Record(Stream::kCompute, merged_.finished.get());
  return absl::OkStatus();
}

// Of the rows whose owner this rank is: it alone writes them back.
void HotSource::NoteOwnUpdates(size_t t, absl::Span<const int32_t> rows,
                               absl::Span<const uint32_t> counts) {
  const ClusterMap owners(exchange_->num_ranks());
  const uint64_t salt = TableSalt(options_.tables[t].id);
  const HeldRows& held = rows_.SlabOf(t).held();
  own_rows_.clear();
  own_counts_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint64_t hash = KeyHash(salt, held.key(rows[i]));
    if (owners.ServerOfHash(hash).value() != exchange_->rank().value()) continue;
    own_rows_.push_back(rows[i]);
    own_counts_.push_back(counts[i]);
  }
  rows_.NoteUpdates(t, own_rows_, own_counts_);
}

void HotSource::FetchForEvaluation(const std::shared_ptr<StepContext>& context, Step step) {
  remote_.FetchForEvaluation(context, step);
}

}  // namespace thermocline
