#include "worker/rows/row_source.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/rows/write_back.h"

namespace thermocline {
namespace {

// With hot rows, the only worker's device may have the next step while this one's results are
// awaited.
int FetchAhead(const RowSourceOptions& options, const Device& device) {
  switch (options.held) {
    case HeldSet::kNone:
      return static_cast<int>(options.staleness_steps);
    case HeldSet::kHot:
      return options.num_workers == 1 && !device.is_host_memory() ? 1 : 0;
    default:
      return options.prefetch_steps;
  }
}

}  // namespace

RowSource::RowSource(const RowSourceOptions& options, Exchange* exchange, PsSession* session,
                     Device* device)
    : options_(options),
      session_(session),
      device_(device),
      fetch_ahead_(FetchAhead(options, *device)) {
  const auto route = [this](GradientRoute of) -> std::unique_ptr<RowRoute>& {
    return routes_[static_cast<size_t>(of)];
  };
  if (options.held != HeldSet::kNone) slabs_ = std::make_unique<RowSlabs>(options, device);
  const RouteParts parts = {options_, slabs_.get(), exchange, session, device};
  if (slabs_ == nullptr || exchange == nullptr) {
    route(GradientRoute::kServer) = std::make_unique<ServerRoute>(parts);
    if (slabs_ != nullptr) route(GradientRoute::kLocal) = MakeLocalRoute(parts);
  } else if (options.held == HeldSet::kSharedCache) {
    route(GradientRoute::kServer) = std::make_unique<ServerRoute>(parts);
    route(GradientRoute::kOwner) = MakeOwnerRoute(parts);
  } else {
    route(GradientRoute::kServer) = MakeServerRouteBesideAll(parts);
    route(GradientRoute::kAll) = MakeAllRoute(parts);
  }
  if (slabs_ == nullptr) return;
  CHECK_EQ(options.num_workers > 1, exchange != nullptr);
  CHECK(exchange == nullptr || options.staleness_steps == 0);
  CHECK(options.prefetch_steps == 0 || options.prefetch_steps < options.window_steps);
  if (options.fixed_rows != nullptr) {
    loader_ = std::make_unique<SetLoader>(slabs_.get(), session, device);
  }
}

RowSource::~RowSource() = default;

void RowSource::AddPulls(StepContext* context) {
  StepPlan& plan = context->row_plan;
  const Step step = context->step();
  context->pulls.Begin(options_.num_servers);
  PullWork& latest = context->pulls.work(StepPulls::kLatest);
  latest.step = step;
  latest.after_step = std::max(kNoStep, step - 1 - options_.staleness_steps);
  if (plan.route == GradientRoute::kServer) {
    plan.awaits_push_of = step - 1 - options_.staleness_steps;
    set_is_loaded_ = false;
  } else {
    const auto after = [&](Step push, StepPulls::Kind kind) {
      PullWork& pull = context->pulls.work(kind);
      pull.after_step = std::max(push, options_.start_step - 1);
      pull.step = pull.after_step + 1;
    };
    after(plan.pushed_through, StepPulls::kPlanned);
    after(plan.cache.pushed_through, StepPulls::kWithState);
    plan.loads_set = loader_ != nullptr && !std::exchange(set_is_loaded_, true);
    if (plan.loads_set) plan.awaits_push_of = step - 1;
  }
  if (slabs_ != nullptr) {
    // In steps that hold nothing, rows keep their places, if not their values.
    if (plan.route == GradientRoute::kServer) {
      plan.cache.counts.rows_held = slabs_->counts().rows_held;
    }
    slabs_->Count(plan.cache.counts);
  }
  AddPulled(context);
  RouteOf(*context).AddPulls(context);
}

void RowSource::AddReads(Step step, StepContext* context) {
  CHECK(context->row_plan.route == GradientRoute::kServer);
  context->pulls.Begin(options_.num_servers);
  PullWork& latest = context->pulls.work(StepPulls::kLatest);
  latest.kind = wire::PullKind::kRead;
  latest.step = step;
  AddPulled(context);
}

// Rows that are asked of other ranks have room behind those that are pulled.
void RowSource::AddPulled(StepContext* context) {
  const StepPlan& plan = context->row_plan;
  context->table_transfers.resize(options_.tables.size());
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    const StepPlan::Table& table = plan.tables[t];
    const size_t dim = options_.tables[t].dim;
    UploadArena::Array<float>& staged = context->table_transfers[t].staged;
    staged = context->upload().Reserve<float>(table.num_staged() * dim);
    AddPull(
        table.pulled, staged.host.subspan(0, table.pulled.keys.size() * dim),
        &context->pulls.work(table.pulls_latest ? StepPulls::kLatest : StepPulls::kPlanned).slices);
  }
}

void RowSource::Receive(StepContext* context, StepTasks* tasks) {
  if (context->row_plan.loads_set) loader_->AddTasks(context->step(), tasks);
  tasks->After(StepWait::For(&context->pulls), [this, context, tasks] {
    RETURN_IF_ERROR(context->pulls.status());
    context->complete_through = context->pulls.complete_through();
    for (TableOperands& table : context->tables) table.has_gradient.clear();
    return RouteOf(*context).Place(context, tasks);
  });
}

void RowSource::Update(StepContext* context) {
  const GradientRoute route = context->row_plan.route;
  for (size_t t = 0; t < context->tables.size(); ++t) {
    const std::vector<uint8_t>& has_gradient = context->tables[t].has_gradient;
    if (has_gradient.empty()) continue;
    CHECK(route == GradientRoute::kServer || route == GradientRoute::kLocal);
    CHECK(device_->is_host_memory());
    CHECK_EQ(has_gradient.size(), context->plan.tables[t].keys.size());
  }
  RouteOf(*context).Update(context);
}

void RowSource::Push(StepContext* context, StepTasks* tasks) {
  context->push = StepPush();
  PushWork& push = context->push.work;
  push.step = context->step();
  push.learning_rate = context->learning_rate;
  push.waves.emplace_back(options_.num_servers);
  tasks->Then([this, context, tasks] { return RouteOf(*context).Push(context, tasks); });
  if (!context->writes_back || context->row_plan.route == GradientRoute::kServer) return;
  tasks->Then([this, context] {
    if (write_back_transfers_ == nullptr) {
      write_back_transfers_ = std::make_unique<StepTransfers>(device_);
    }
    context->push.write_back = WriteBack::Begin(slabs_.get(), write_back_transfers_.get(), session_,
                                                device_, &context->push.work);
    return absl::OkStatus();
  });
}

void RowSource::FinishPush(StepContext* context, StepTasks* tasks) {
  RouteOf(*context).FinishPush(context, tasks);
  if (context->push.write_back == nullptr) return;
  tasks->Then([context, tasks] {
    std::exchange(context->push.write_back, nullptr)->AddTasks(context->step(), tasks);
    return absl::OkStatus();
  });
}

}  // namespace thermocline
