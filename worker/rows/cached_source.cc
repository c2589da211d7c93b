#include "worker/rows/cached_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/completion.h"
#include "common/base/status_macros.h"

namespace thermocline {

// What goes between host and device for one table.
struct CachedSource::TableOfStep {
  UploadArena::Array<float> bypassed_rows;  // [bypassed, dim]
  UninitializedVector<uint32_t> bypassed_counts;
  DownloadArena::Array<float> bypassed_gradients;  // [bypassed, dim]
  DownloadArena::Array<float> gradients;           // several workers: [num_unique, dim]
  DeviceSpan<const int32_t> rows;                  // the plan's, on the device
  DeviceSpan<const int32_t> bypassed_positions;    // the plan's, on the device
};

struct CachedSource::OfStep {
  OwnedRows::OfStep held;
  std::vector<TableOfStep> tables;
  Completion fetched;
};

CacheDistances DistancesOf(const CachedSourceOptions& options) {
  CacheDistances distances;
  distances.prefetch_steps = options.prefetch_steps;
  if (!options.updates_rows()) {
    const int staleness = static_cast<int>(options.staleness_steps);
    distances.prefetch_steps = std::min(options.prefetch_steps, staleness / 2);
    distances.copy_steps = staleness - distances.prefetch_steps;
  }
  return distances;
}

CachePlannerOptions PlannerOptionsOf(const CachedSourceOptions& options) {
  CachePlannerOptions planner;
  for (const CacheGroupLayout& group : options.layout.groups) {
    planner.groups.push_back({group.tables, group.capacity, group.keeps_rows});
  }
  planner.window_steps = options.window_steps;
  planner.mode = options.updates_rows() ? CachePlannerOptions::Mode::kOwned
                                        : CachePlannerOptions::Mode::kCopies;
  planner.copy_steps = DistancesOf(options).copy_steps;
  // Where rows are shared, the planner sees no keys of such tables.
  planner.follows_every_push = !options.shares_rows && options.servers_forget_rows();
  return planner;
}

CachedSource::CachedSource(const CachedSourceOptions& options, PsSession* session, Device* device)
    : options_(options),
      distances_(DistancesOf(options)),
      session_(session),
      device_(device),
      uncached_(options, session, device),
      rows_(options, session, device),
      gradients_(options.tables, device) {
  if (options.static_rows == nullptr) return;
  CHECK(owns_rows());
  loader_ = std::make_unique<HotLoader>(options.static_rows, options.write_back_piece_bytes, &rows_,
                                        session, device);
}

CachedSource::~CachedSource() = default;

PullWork CachedSource::PullBypassed(StepContext* context) const {
  OfStep& step = context->of_source.Get<OfStep>();
  PullWork pull;
  pull.slices.resize(options_.num_servers);
  for (size_t t = 0; t < step.tables.size(); ++t) {
    const CachedKeys& keys = context->cache_plan.tables[t].bypassed;
    UploadArena::Array<float>& rows = step.tables[t].bypassed_rows;
    rows = context->upload().Reserve<float>(keys.keys.size() * options_.tables[t].dim);
    AddPullSlices(SharesOf(options_.tables[t].id, keys), rows.host, &pull.slices);
  }
  return pull;
}

void CachedSource::Fetch(const std::shared_ptr<StepContext>& context,
                         const std::vector<std::vector<PullSlice>>& dense) {
  CHECK(context->has_cache_plan);
  OfStep& step = context->of_source.Get<OfStep>();
  step.tables.resize(options_.tables.size());
  std::vector<PullWork> pulls;
  pulls.push_back(rows_.Begin(&context->cache_plan, context->transfers.get(), &step.held));
  pulls.push_back(PullBypassed(context.get()));
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
  StartPulls(session_, std::move(pulls), context, &step.fetched);
}

void CachedSource::PlaceBypassed(StepContext* context, size_t t, std::vector<RowCopy>* scatters) {
  const CachedKeys& bypassed = context->cache_plan.tables[t].bypassed;
  if (bypassed.size() == 0) return;
  const int dim = options_.tables[t].dim;
  const float* const packed = context->of_source.Get<OfStep>().tables[t].bypassed_rows.device.data;
  scatters->push_back({rows_.SlabOf(t).Rows(dim),
                       context->upload().Add(absl::MakeConstSpan(bypassed.rows)),
                       // The device only reads it.
                       FloatMatrix(const_cast<float*>(packed), bypassed.size(), dim)});
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
  if (owns_rows()) {
    for (size_t t = 0; t < context->tables.size(); ++t) PlaceBypassedGradients(context, t);
    return gradients_.Place(context);
  }
  for (size_t t = 0; t < context->tables.size(); ++t) {
    const int32_t num_unique = context->plan.tables[t].num_unique();
    const int dim = options_.tables[t].dim;
    DownloadArena::Array<float>& gradients = context->of_source.Get<OfStep>().tables[t].gradients;
    gradients = context->download().Add<float>(size_t{1} * num_unique * dim);
    context->tables[t].gradients = FloatMatrix(gradients.device.data, num_unique, dim);
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
    DeviceSlab& slab = rows_.SlabOf(t);
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
  OfStep& step = context->of_source.Get<OfStep>();
  RETURN_IF_ERROR(step.fetched.Wait());
  if (loader_ != nullptr) {
    RETURN_IF_ERROR(loader_->Load(context->step()));
    loader_ = nullptr;
  }
  RETURN_IF_ERROR(rows_.ReserveStaging(context->cache_plan));
  std::vector<RowCopy> gathers, scatters;
  rows_.Place(context->complete_through, &step.held, &gathers, &scatters);
  for (size_t t = 0; t < options_.tables.size(); ++t) PlaceBypassed(context, t, &scatters);
  RETURN_IF_ERROR(FindCompleteThrough(context));
  context->tables.resize(options_.tables.size());
  RETURN_IF_ERROR(PlaceGradients(context));
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    context->tables[t].rows = rows_.SlabOf(t).Rows(options_.tables[t].dim);
  }
  SendUploads(device_, context);
  device_->GatherRows(gathers);
  device_->ScatterRows(scatters);
  return absl::OkStatus();
}

void CachedSource::Update(StepContext* context) {
  OfStep& step = context->of_source.Get<OfStep>();
  if (owns_rows()) {
    std::vector<RowUpdateGroup> updates;
    std::vector<RowCopy> gathers;
    for (size_t t = 0; t < context->tables.size(); ++t) {
      const TableOfStep& table = step.tables[t];
      const auto bypassed = static_cast<int32_t>(table.bypassed_positions.size);
      updates.push_back(rows_.UpdateOf(t, *context, context->tables[t].gradients, table.rows));
      gathers.push_back(
          {context->tables[t].gradients, table.bypassed_positions,
           FloatMatrix(table.bypassed_gradients.device.data, bypassed, options_.tables[t].dim)});
      rows_.NoteUpdates(t, context->cache_plan.tables[t].rows, context->plan.tables[t].counts);
    }
    gradients_.FindBad(context);
    device_->SparseUpdate(updates);
    // Queued after the update: the servers get the rows as of this step.
    rows_.WriteAhead(&step.held, &gathers);
    device_->GatherRows(gathers);
  }
  context->download().Send(Stream::kCompute);
}

absl::Status CachedSource::Push(const std::shared_ptr<StepContext>& context,
                                std::vector<std::vector<wire::PushSlice>> dense) {
  // Gradients of held rows are not pushed, so no other check would find a bad one.
  if (owns_rows()) RETURN_IF_ERROR(gradients_.Check(*context));
  OfStep& step = context->of_source.Get<OfStep>();
  PushWork push;
  push.step = context->step();
  push.learning_rate = context->learning_rate;
  std::vector<std::vector<wire::PushSlice>>& wave = push.waves.emplace_back(options_.num_servers);
  for (size_t t = 0; t < context->tables.size(); ++t) {
    const TablePlan& plan = context->plan.tables[t];
    const TableOfStep& table = step.tables[t];
    if (owns_rows()) {
      AddPushSlices(SharesOf(plan.id, context->cache_plan.tables[t].bypassed),
                    wire::PushKind::kGradient, table.bypassed_counts, table.bypassed_gradients.host,
                    &wave);
    } else {
      AddPushSlices(SharesOf(plan.id, plan), wire::PushKind::kGradient, plan.counts,
                    table.gradients.host, &wave);
    }
  }
  if (owns_rows()) {
    rows_.AddEvicted(step.held, &wave);
    rows_.AddWrittenAhead(step.held, &wave);
  }
  rows_.StartPush(context, std::move(push), std::move(dense), &step.held);
  RETURN_IF_ERROR(session_->ReleaseWave(context->step(), 0));
  return rows_.SendPieces(context->step(), &step.held);
}

absl::Status CachedSource::FinishPush(StepContext* context) {
  return rows_.FinishPush(context->step(), &context->of_source.Get<OfStep>().held);
}

void CachedSource::FetchForEvaluation(const std::shared_ptr<StepContext>& context, Step step) {
  uncached_.FetchForEvaluation(context, step);
}

}  // namespace thermocline
