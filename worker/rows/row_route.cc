#include "worker/rows/row_route.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/rows/row_gradients.h"

namespace thermocline {
namespace {

// The only worker updates held rows in their place. The gradients of the pulled rows, which stand
// in staging, go to the servers.
class LocalRoute : public RowRoute {
 public:
  explicit LocalRoute(const RouteParts& parts)
      : parts_(parts), gradients_(parts.options.tables, parts.device) {}

  void AddPulls(StepContext* context) override { parts_.slabs->AddPulls(context); }

  absl::Status Place(StepContext* context, StepTasks*) override {
    RowSlabs& slabs = *parts_.slabs;
    RETURN_IF_ERROR(slabs.ReserveStaging(context->row_plan.cache));
    std::vector<RowCopy> gathers, scatters;
    slabs.Place(context, &gathers, &scatters);
    context->complete_through = context->step() - 1;
    context->tables.resize(parts_.options.tables.size());
    for (size_t t = 0; t < context->tables.size(); ++t) PlaceTable(t, context, &scatters);
    RETURN_IF_ERROR(gradients_.Place(context));
    SendUploads(parts_.device, context);
    parts_.device->GatherRows(gathers);
    parts_.device->ScatterRows(scatters);
    return absl::OkStatus();
  }

  void Update(StepContext* context) override {
    std::vector<RowUpdateGroup> updates;
    std::vector<RowCopy> gathers;
    for (size_t t = 0; t < context->tables.size(); ++t) {
      const TableTransfers& table = context->table_transfers[t];
      const Matrix gradients = context->tables[t].gradients;
      const auto pulled = static_cast<int32_t>(table.pulled_positions.size);
      parts_.slabs->AppendUpdatesOf(t, *context, gradients, UpdatedRows(t, context), &updates);
      gathers.push_back({gradients, table.pulled_positions,
                         FloatMatrix(table.gradients.device.data, pulled, gradients.cols)});
      // The servers must count the lookups of rows without a gradient, too.
      parts_.slabs->NoteUpdates(t, context->row_plan.cache.tables[t].rows,
                                context->plan.tables[t].counts);
    }
    gradients_.FindBad(context);
    parts_.device->SparseUpdate(updates);
    // Queued after the update: the servers get the rows as of this step.
    parts_.slabs->WriteAhead(context, &gathers);
    parts_.device->GatherRows(gathers);
    context->download().Send(Stream::kCompute);
  }

  // The gradients of held rows are not pushed, so no other check would find a bad one.
  absl::Status Push(StepContext* context, StepTasks*) override {
    RETURN_IF_ERROR(gradients_.Check(*context));
    PushPulled(parts_.options, context);
    parts_.slabs->AddEvicted(*context, &context->push.work.waves[0]);
    parts_.slabs->AddWrittenAhead(*context, &context->push.work.waves[0]);
    return absl::OkStatus();
  }

 private:
  // The rows that the step updates, of all keys: those of keys without a gradient are beyond all
  // rows of the slab, so that they are passed over.
  DeviceSpan<const int32_t> UpdatedRows(size_t t, StepContext* context) const {
    TableTransfers& table = context->table_transfers[t];
    const std::vector<uint8_t>& has_gradient = context->tables[t].has_gradient;
    if (has_gradient.empty()) return table.held;
    table.updated.resize(has_gradient.size());
    for (size_t u = 0; u < has_gradient.size(); ++u) {
      table.updated[u] = has_gradient[u] != 0 ? table.held[u] : std::numeric_limits<int32_t>::max();
    }
    return {table.updated.data(), static_cast<int64_t>(table.updated.size())};
  }

  void PlaceTable(size_t t, StepContext* context, std::vector<RowCopy>* scatters) const {
    const TableCachePlan& plan = context->row_plan.cache.tables[t];
    const int dim = parts_.options.tables[t].dim;
    TableTransfers& table = context->table_transfers[t];
    context->tables[t].rows = parts_.slabs->SlabOf(t).Rows(dim);
    table.held = context->upload().Add(absl::MakeConstSpan(plan.rows));
    table.pulled_positions = context->upload().Add(context->row_plan.tables[t].pulled_positions);
    table.gradients = context->download().Add<float>(plan.bypassed.keys.size() * dim);
    if (plan.bypassed.size() == 0) return;
    scatters->push_back({context->tables[t].rows,
                         context->upload().Add(absl::MakeConstSpan(plan.bypassed.rows)),
                         StagedRows(*context, t, dim)});
  }

  const RouteParts parts_;
  RowGradients gradients_;
};

// Splits the pulled keys by whether they have a gradient. Moves the gradients of those that have
// one to the front, in their order; the others were not written.
//   gradients: [pulled, dim]
void SplitPulled(const StepPlan::Table& plan, const std::vector<uint8_t>& has_gradient, int dim,
                 TableTransfers* table) {
  CachedKeys* const parts[] = {&table->without_gradient, &table->with_gradient};
  for (CachedKeys* part : parts) {
    part->keys.clear();
    part->counts.clear();
    part->server_begin.assign(1, 0);
  }
  float* const gradients = table->gradients.host.data();
  for (size_t server = 0; server + 1 < plan.pulled.server_begin.size(); ++server) {
    for (int32_t i = plan.pulled.server_begin[server]; i < plan.pulled.server_begin[server + 1];
         ++i) {
      const int32_t u = plan.pulled_positions.empty() ? i : plan.pulled_positions[i];
      CachedKeys& to = *parts[has_gradient[u] != 0 ? 1 : 0];
      if (has_gradient[u] != 0 && to.size() < i) {
        std::copy_n(gradients + size_t{1} * i * dim, dim, gradients + size_t{1} * to.size() * dim);
      }
      to.keys.push_back(plan.pulled.keys[i]);
      to.counts.push_back(plan.pulled.counts[i]);
    }
    for (CachedKeys* part : parts) part->server_begin.push_back(part->size());
  }
}

}  // namespace

absl::Status ServerRoute::Place(StepContext* context, StepTasks*) {
  // The servers have every row.
  CHECK(parts_.slabs == nullptr || !parts_.slabs->HasUnwritten());
  context->tables.resize(parts_.options.tables.size());
  for (size_t t = 0; t < context->tables.size(); ++t) {
    context->tables[t].rows = StagedRows(*context, t, parts_.options.tables[t].dim);
  }
  PlaceGradients(parts_.options, context);
  SendUploads(parts_.device, context);
  return absl::OkStatus();
}

absl::Status ServerRoute::Push(StepContext* context, StepTasks*) {
  PushPulled(parts_.options, context);
  return absl::OkStatus();
}

std::unique_ptr<RowRoute> MakeLocalRoute(const RouteParts& parts) {
  return std::make_unique<LocalRoute>(parts);
}

Matrix StagedRows(const StepContext& context, size_t t, int dim) {
  const DeviceSpan<const float> staged = context.table_transfers[t].staged.device;
  // They are only read.
  return FloatMatrix(const_cast<float*>(staged.data), static_cast<int32_t>(staged.size / dim), dim);
}

void PlaceGradients(const RowSourceOptions& options, StepContext* context) {
  for (size_t t = 0; t < context->tables.size(); ++t) {
    const int32_t num_unique = context->plan.tables[t].num_unique();
    const int dim = options.tables[t].dim;
    DownloadArena::Array<float>& gradients = context->table_transfers[t].gradients;
    gradients = context->download().Add<float>(size_t{1} * num_unique * dim);
    context->tables[t].gradients = FloatMatrix(gradients.device.data, num_unique, dim);
  }
}

void PushPulled(const RowSourceOptions& options, StepContext* context) {
  PushesByServer& wave = context->push.work.waves[0];
  for (size_t t = 0; t < context->tables.size(); ++t) {
    const StepPlan::Table& plan = context->row_plan.tables[t];
    const std::vector<uint8_t>& has_gradient = context->tables[t].has_gradient;
    const int dim = options.tables[t].dim;
    TableTransfers& table = context->table_transfers[t];
    KeyShares pushed = plan.pulled;
    if (!has_gradient.empty()) {
      SplitPulled(plan, has_gradient, dim, &table);
      pushed = SharesOf(plan.pulled.table, table.with_gradient);
      AddPush(SharesOf(plan.pulled.table, table.without_gradient), wire::PushKind::kCount, {},
              &wave);
    }
    AddPush(pushed, wire::PushKind::kGradient,
            table.gradients.host.subspan(0, pushed.keys.size() * dim), &wave);
  }
}

}  // namespace thermocline
