// What differs between steps by the route of their gradients (step_plan.h): where a step's rows are
// for the device, and what becomes of the gradients.
#ifndef THERMOCLINE_WORKER_ROWS_ROW_ROUTE_H_
#define THERMOCLINE_WORKER_ROWS_ROW_ROUTE_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "worker/exchange/exchange.h"
#include "worker/rows/row_slabs.h"
#include "worker/rows/row_source_options.h"
#include "worker/rows/step_context.h"
#include "worker/rows/step_tasks.h"
#include "worker/session/ps_session.h"

namespace thermocline {

// RowSource calls these, in this order for each step. What a call can't do yet it adds as tasks.
class RowRoute {
 public:
  virtual ~RowRoute() = default;

  // Adds pulls, beside those of the rows that the plan pulls into table_transfers[].staged.
  virtual void AddPulls(StepContext*) {}
  // The pulls are over: brings the rows to where the device reads them, and fills
  // context->tables.
  virtual absl::Status Place(StepContext* context, StepTasks* tasks) = 0;
  // Queues what follows the gradients.
  virtual void Update(StepContext* context) = 0;
  // The device has finished the step: adds to context->push.work, whose wave 0 is there.
  virtual absl::Status Push(StepContext* context, StepTasks* tasks) = 0;
  // The push has started.
  virtual void FinishPush(StepContext*, StepTasks*) {}
};

// What routes are made of; all of it outlives them.
struct RouteParts {
  const RowSourceOptions& options;
  RowSlabs* slabs = nullptr;     // Null: ServerRoute alone.
  Exchange* exchange = nullptr;  // Null: ServerRoute and the local route alone.
  PsSession* session = nullptr;
  Device* device = nullptr;
};

// Every row is read where it was pulled to, and every gradient goes to the servers.
class ServerRoute : public RowRoute {
 public:
  explicit ServerRoute(const RouteParts& parts) : parts_(parts) {}

  absl::Status Place(StepContext* context, StepTasks* tasks) override;
  void Update(StepContext* context) override { context->download().Send(Stream::kCompute); }
  absl::Status Push(StepContext* context, StepTasks* tasks) override;

 protected:
  const RouteParts parts_;
};

std::unique_ptr<RowRoute> MakeLocalRoute(const RouteParts& parts);
std::unique_ptr<RowRoute> MakeOwnerRoute(const RouteParts& parts);
std::unique_ptr<RowRoute> MakeAllRoute(const RouteParts& parts);
// The route to the servers in a job that also has steps of the route to all: no rank sends
// gradients to another, and says so.
std::unique_ptr<RowRoute> MakeServerRouteBesideAll(const RouteParts& parts);

// For routes: the rows that were pulled and asked for, as the device reads them. [staged, dim]
Matrix StagedRows(const StepContext& context, size_t table, int dim);
// Room for the gradients of all distinct keys of every table, which leave the device.
void PlaceGradients(const RowSourceOptions& options, StepContext* context);
// Adds the gradients of the pulled keys to wave 0; they are the first of
// table_transfers[].gradients. Of keys without one it adds the lookups.
void PushPulled(const RowSourceOptions& options, StepContext* context);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_ROW_ROUTE_H_
