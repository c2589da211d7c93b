#include "worker/source/cached_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/source/cached_source_step.h"

namespace thermocline {
namespace {

// The metadata of held rows is prefetched so many rows ahead.
constexpr size_t kRowsAhead = 16;

// Of the rows of each slab.
double MaxUnwrittenShare(const CachedSourceOptions& options) {
  const double capacity_bytes = static_cast<double>(options.layout.capacity_bytes());
  const double max_bytes = static_cast<double>(options.max_unwritten_bytes) * options.num_servers;
  return max_bytes < capacity_bytes ? max_bytes / capacity_bytes : 1;
}

// A step's pulls; done when the last of them is.
struct PullsOfStep {
  absl::Mutex mutex;
  size_t under_way ABSL_GUARDED_BY(mutex) = 0;
  absl::Status status ABSL_GUARDED_BY(mutex);
  Step complete_through ABSL_GUARDED_BY(mutex);
};

}  // namespace

CacheDistances DistancesOf(const CachedSourceOptions& options) {
  CacheDistances distances;
  distances.prefetch_steps = options.prefetch_steps;
  if (options.num_workers > 1) {
    const int staleness = static_cast<int>(options.staleness_steps);
    distances.prefetch_steps = std::min(options.prefetch_steps, staleness / 2);
    distances.copy_steps = staleness - distances.prefetch_steps;
  }
  return distances;
}

CachePlannerOptions PlannerOptionsOf(const CachedSourceOptions& options) {
  CachePlannerOptions planner;
  for (const CacheGroupLayout& group : options.layout.groups) {
    planner.groups.push_back({group.tables, group.capacity});
  }
  planner.window_steps = options.window_steps;
  planner.mode = options.num_workers == 1 ? CachePlannerOptions::Mode::kOwned
                                          : CachePlannerOptions::Mode::kCopies;
  planner.copy_steps = DistancesOf(options).copy_steps;
  planner.follows_every_push = std::any_of(
      options.tables.begin(), options.tables.end(),
      [](const TableLayout& table) { return table.unused_steps > 0 || table.max_rows > 0; });
  return planner;
}

CachedSource::CachedSource(const CachedSourceOptions& options, PsSession* session, Device* device)
    : options_(options),
      distances_(DistancesOf(options)),
      max_unwritten_share_(MaxUnwrittenShare(options)),
      session_(session),
      device_(device),
      uncached_(options, session, device),
      group_of_(options.tables.size()),
      chosen_(options.tables.size() * options.num_servers),
      bad_gradient_(device->Allocate(sizeof(int64_t))) {
  CHECK_LT(options.prefetch_steps, options.window_steps);
  for (const CacheGroupLayout& group : options.layout.groups) {
    for (const int32_t table : group.tables) group_of_[table] = slabs_.size();
    slabs_.push_back(std::make_unique<DeviceSlab>(group, device));
  }
}

CachedSource::~CachedSource() = default;

// A pull of the same share of every table's keys, into the buffers of its rows.
PullWork CachedSource::PullOf(StepContext* context, CachedKeys TableCachePlan::*share,
                              UploadArena::Array<float> TableOfStep::*rows, bool with_state) const {
  OfStep& step = context->of_source.Get<OfStep>();
  PullWork pull;
  pull.with_state = with_state;
  pull.slices.resize(options_.num_servers);
  for (size_t t = 0; t < step.tables.size(); ++t) {
    const CachedKeys& keys = context->cache_plan.tables[t].*share;
    UploadArena::Array<float>& to = step.tables[t].*rows;
    const int width = with_state ? WidthOf(t) : options_.tables[t].dim;
    to = context->upload().Reserve<float>(keys.keys.size() * width);
    AddPullSlices(SharesOf(options_.tables[t].id, keys), to.host, &pull.slices);
  }
  return pull;
}

void CachedSource::StartPulls(const std::shared_ptr<StepContext>& context,
                              std::vector<PullWork> pulls) {
  const auto state = std::make_shared<PullsOfStep>();
  {
    absl::MutexLock lock(&state->mutex);
    state->under_way = pulls.size();
    state->complete_through = context->step() - 1;
  }
  Completion* const fetched = &context->of_source.Get<OfStep>().fetched;
  fetched->Reset();
  for (PullWork& pull : pulls) {
    session_->Pull(std::move(pull), [state, fetched, context](absl::Status status, Step through) {
      bool last = false;
      {
        absl::MutexLock lock(&state->mutex);
        state->status.Update(status);
        state->complete_through = std::min(state->complete_through, through);
        last = --state->under_way == 0;
        if (last) context->complete_through = state->complete_through;
        status = state->status;
      }
      if (last) fetched->Deliver(std::move(status));
    });
  }
}

void CachedSource::Fetch(const std::shared_ptr<StepContext>& context,
                         const std::vector<std::vector<PullSlice>>& dense) {
  CHECK(context->has_cache_plan);
  context->of_source.Get<OfStep>().tables.resize(options_.tables.size());
  std::vector<PullWork> pulls;
  // Rows that enter the cache come with their optimizer state where this worker updates them.
  pulls.push_back(PullOf(context.get(), &TableCachePlan::loaded, &TableOfStep::loaded_rows,
                         /*with_state=*/owns_rows()));
  pulls.push_back(PullOf(context.get(), &TableCachePlan::bypassed, &TableOfStep::bypassed_rows,
                         /*with_state=*/false));
  for (PullWork& pull : pulls) {
    if (owns_rows()) {
      // The only worker: a row can lack only its own pushes.
      pull.after_step = std::max(context->cache_plan.pushed_through, options_.start_step - 1);
      pull.step = pull.after_step + 1;
    } else {
      pull.step = context->step() + distances_.copy_steps;
      pull.after_step = std::max(kNoStep, pull.step - 1 - options_.staleness_steps);
    }
  }
  AddPullSlices(dense, &pulls.back().slices);
  StartPulls(context, std::move(pulls));
}

// Copies evicted rows that are newer than the servers' to the host.
void CachedSource::TakeEvicted(StepContext* context, size_t t, std::vector<RowCopy>* gathers) {
  const CachedKeys& evicted = context->cache_plan.tables[t].evicted;
  HeldRows& held = SlabOf(t).held();
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    for (int32_t i = evicted.server_begin[server]; i < evicted.server_begin[server + 1]; ++i) {
      const int32_t row = evicted.rows[i];
      CHECK_EQ(held.key(row), evicted.keys[i]);
      const uint32_t lookups = held.TakeUnwritten(row);
      if (lookups > 0) chosen_[t * options_.num_servers + server].push_back({row, lookups});
    }
  }
  GatherChosen(context, t, &context->of_source.Get<OfStep>().tables[t].evicted, gathers);
}

// Copies the chosen rows of the table to the host.
void CachedSource::GatherChosen(StepContext* context, size_t t, WrittenRows* written,
                                std::vector<RowCopy>* gathers) {
  TakeChosen(t, &written->keys, &written->counts);
  const int32_t count = written->keys.size();
  const int width = WidthOf(t);
  written->rows = context->download().Add<float>(size_t{1} * count * width);
  if (count == 0) return;
  gathers->push_back({SlabOf(t).Rows(width),
                      context->upload().Add(absl::MakeConstSpan(written->keys.rows)),
                      FloatMatrix(written->rows.device.data, count, width)});
}

// Copies pulled rows to their places in the slab.
void CachedSource::PlacePulled(StepContext* context, size_t t, std::vector<RowCopy>* scatters) {
  const TableOfStep& table = context->of_source.Get<OfStep>().tables[t];
  const TableCachePlan& plan = context->cache_plan.tables[t];
  DeviceSlab& slab = SlabOf(t);
  const auto place = [&](const CachedKeys& keys, DeviceSpan<const float> packed, int width) {
    if (keys.size() == 0) return;
    scatters->push_back({slab.Rows(width), context->upload().Add(absl::MakeConstSpan(keys.rows)),
                         // The device only reads it.
                         FloatMatrix(const_cast<float*>(packed.data), keys.size(), width)});
  };
  place(plan.loaded, table.loaded_rows.device, WidthOf(t));
  place(plan.bypassed, table.bypassed_rows.device, options_.tables[t].dim);
  for (int32_t i = 0; i < plan.loaded.size(); ++i) {
    slab.held().Hold(plan.loaded.rows[i], static_cast<int32_t>(t), plan.loaded.keys[i],
                     context->complete_through);
  }
}

void CachedSource::PlaceBypassedGradients(StepContext* context, size_t t) {
  const TableCachePlan& plan = context->cache_plan.tables[t];
  TableOfStep& table = context->of_source.Get<OfStep>().tables[t];
  const UninitializedVector<int32_t>& positions = plan.bypassed_positions;
  table.rows = context->upload().Add(absl::MakeConstSpan(plan.rows));
  table.bypassed_positions = context->upload().Add(absl::MakeConstSpan(positions));
  table.bypassed_gradients =
      context->download().Add<float>(positions.size() * options_.tables[t].dim);
  table.bypassed_counts.resize(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    table.bypassed_counts[i] = context->plan.tables[t].counts[positions[i]];
  }
}

// Places for the step's gradients on the host; where rows are updated here, only of rows that are
// not held.
absl::Status CachedSource::PlaceGradients(StepContext* context) {
  OfStep& step = context->of_source.Get<OfStep>();
  size_t floats = 0;
  for (size_t t = 0; t < context->tables.size(); ++t) {
    floats += context->plan.tables[t].keys.size() * options_.tables[t].dim;
  }
  if (owns_rows() && gradients_size_ < floats) {
    RETURN_IF_ERROR(device_->Synchronize());
    gradients_size_ = floats + floats / 4;
    gradients_ = device_->Allocate(sizeof(float) * gradients_size_);
    RETURN_IF_ERROR(device_->Synchronize());
  }
  float* next = owns_rows() && gradients_ != nullptr ? gradients_->floats() : nullptr;
  for (size_t t = 0; t < context->tables.size(); ++t) {
    const int32_t num_unique = context->plan.tables[t].num_unique();
    const int dim = options_.tables[t].dim;
    const size_t size = size_t{1} * num_unique * dim;
    float* gradients = next;
    if (owns_rows()) {
      next += size;
      PlaceBypassedGradients(context, t);
    } else {
      step.tables[t].gradients = context->download().Add<float>(size);
      gradients = step.tables[t].gradients.device.data;
    }
    context->tables[t].gradients = FloatMatrix(gradients, num_unique, dim);
  }
  return absl::OkStatus();
}

// Over all rows that the step reads: those pulled for it, and older copies. Checked here, so that
// bounded staleness does not depend on the plan alone.
absl::Status CachedSource::FindCompleteThrough(StepContext* context) {
  if (owns_rows()) {
    context->complete_through = context->step() - 1;
    return absl::OkStatus();
  }
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    DeviceSlab& slab = SlabOf(t);
    for (const int32_t row : context->cache_plan.tables[t].rows) {
      if (!slab.IsCached(row)) continue;
      context->complete_through =
          std::min(context->complete_through, slab.held().complete_through(row));
    }
  }
  const Step bound = std::max(kNoStep, context->step() - 1 - options_.staleness_steps);
  if (context->complete_through >= bound) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "step ", context->step().value(), " would read a cached row that is complete through step ",
      context->complete_through.value(), "; it must be through step ", bound.value()));
}

absl::Status CachedSource::Await(StepContext* context) {
  if (!context->has_cache_plan) return uncached_.Await(context);
  RETURN_IF_ERROR(context->of_source.Get<OfStep>().fetched.Wait());
  std::vector<int32_t> staging(slabs_.size(), 0);
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    staging[group_of_[t]] += context->cache_plan.tables[t].bypassed.size();
  }
  for (size_t g = 0; g < slabs_.size(); ++g) {
    RETURN_IF_ERROR(slabs_[g]->ReserveStaging(staging[g]));
  }
  std::vector<RowCopy> gathers, scatters;
  // Evictions of all tables come before loads: a row of the slab may go from one table to another.
  for (size_t t = 0; t < options_.tables.size(); ++t) TakeEvicted(context, t, &gathers);
  for (size_t t = 0; t < options_.tables.size(); ++t) PlacePulled(context, t, &scatters);
  RETURN_IF_ERROR(FindCompleteThrough(context));
  context->tables.resize(options_.tables.size());
  RETURN_IF_ERROR(PlaceGradients(context));
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    context->tables[t].rows = SlabOf(t).Rows(options_.tables[t].dim);
  }
  SendUploads(device_, context);
  device_->GatherRows(gathers);
  device_->ScatterRows(scatters);
  return absl::OkStatus();
}

void CachedSource::CountLookups(const StepContext& context, size_t t) {
  const TableCachePlan& plan = context.cache_plan.tables[t];
  const UninitializedVector<uint32_t>& counts = context.plan.tables[t].counts;
  DeviceSlab& slab = SlabOf(t);
  const size_t num_unique = plan.rows.size();
  for (size_t u = 0; u < num_unique; ++u) {
    const int32_t ahead = plan.rows[std::min(u + kRowsAhead, num_unique - 1)];
    if (slab.IsCached(ahead)) slab.held().Prefetch(ahead);
    if (slab.IsCached(plan.rows[u])) slab.held().AddUpdate(plan.rows[u], counts[u]);
  }
}

// A server checks the pushes that it gets; a worker that updates rows in its place must do the
// same. The host looks before anything of the step is pushed (CheckGradients).
void CachedSource::FindBadGradient(StepContext* context) {
  int64_t floats = 0;
  for (const TableOperands& table : context->tables) {
    floats += int64_t{table.gradients.rows} * table.gradients.cols;
  }
  if (gradients_ == nullptr || bad_gradient_->data() == nullptr) return;
  auto* const index = static_cast<int64_t*>(bad_gradient_->data());
  device_->FindNonFinite({gradients_->floats(), floats}, {index, 1});
  device_->CopyToHost(&context->outcome()->bad_row_gradient, index, sizeof(int64_t),
                      Stream::kCompute);
}

void CachedSource::Update(StepContext* context) {
  const OfStep& step = context->of_source.Get<OfStep>();
  int64_t written_ahead = 0;
  if (owns_rows()) {
    std::vector<RowUpdateGroup> updates;
    std::vector<RowCopy> gathers;
    for (size_t t = 0; t < context->tables.size(); ++t) {
      const TableOfStep& table = step.tables[t];
      const TableLayout& layout = options_.tables[t];
      const auto bypassed = static_cast<int32_t>(table.bypassed_positions.size);
      updates.push_back(
          {layout.optimizer,
           ScalarsForStep(layout.optimizer, context->learning_rate, context->optimizer_step()),
           context->tables[t].gradients, table.rows, SlabOf(t).CachedRows()});
      gathers.push_back({context->tables[t].gradients, table.bypassed_positions,
                         FloatMatrix(table.bypassed_gradients.device.data, bypassed, layout.dim)});
      CountLookups(*context, t);
    }
    FindBadGradient(context);
    device_->SparseUpdate(updates);
    // Queued after the update: the servers get the rows as of this step.
    written_ahead = WriteAhead(context, &gathers);
    device_->GatherRows(gathers);
  }
  context->download().Send(Stream::kCompute);
  absl::MutexLock lock(&mutex_);
  const CacheCounts& planned = context->cache_plan.counts;
  counts_.hits += planned.hits;
  counts_.loaded += planned.loaded;
  counts_.bypassed += planned.bypassed;
  counts_.rejected_no_room += planned.rejected_no_room;
  counts_.evicted += planned.evicted;
  counts_.written_ahead += written_ahead;
  counts_.rows_held = planned.rows_held;
}

void CachedSource::FetchForEvaluation(const std::shared_ptr<StepContext>& context, Step step) {
  uncached_.FetchForEvaluation(context, step);
}

CacheCounts CachedSource::counts() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

}  // namespace thermocline
