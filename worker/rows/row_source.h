// Where a trainer's rows come from and where its gradients go: carries out the plans of steps
// (step_plan.h). What differs by the gradients' route is a RowRoute (row_route.h); those between
// workers are not made where there is one.
//
// For each step, in order: AddPulls, Receive, Update, Push, FinishPush. Up to fetch_ahead() later
// steps may be fetched before a step's Push. A trainer that pipelines its steps (trainer.h) has the
// next step received and updated before Push, too, unless the step writes back or the next one
// awaits its push. (worker/dense/step_order.h has the whole order, with the dense parameters.)
//
// A machine without waits: what must wait is added as tasks (step_tasks.h), and a call is over when
// its tasks have run. One thread calls it. A context outlives its tasks. An error of a pull or a
// push fails the session, which its owner drains and cancels (ps_session.h).
#ifndef THERMOCLINE_WORKER_ROWS_ROW_SOURCE_H_
#define THERMOCLINE_WORKER_ROWS_ROW_SOURCE_H_

#include <array>
#include <memory>

#include "common/base/ids.h"
#include "kernels/device.h"
#include "worker/exchange/exchange.h"
#include "worker/rows/row_route.h"
#include "worker/rows/row_slabs.h"
#include "worker/rows/row_source_options.h"
#include "worker/rows/set_loader.h"
#include "worker/rows/step_context.h"
#include "worker/rows/step_tasks.h"
#include "worker/session/ps_session.h"

namespace thermocline {

class RowSource {
 public:
  // exchange: null where there is one worker, or every row stays with the servers. All that is
  // pointed to outlives the source. REQUIRES: staleness_steps is 0 where several workers hold rows;
  // the last hot step before a cold one or an evaluation writes back.
  RowSource(const RowSourceOptions& options, Exchange* exchange, PsSession* session,
            Device* device);
  ~RowSource();

  // Steps that may be fetched beyond the one being computed.
  int fetch_ahead() const { return fetch_ahead_; }

  // Adds what the step pulls to context->pulls, which it begins. Where the rows wait for a push of
  // this worker, context->row_plan.awaits_push_of says so from here on.
  void AddPulls(StepContext* context);
  // The same for an evaluation, which reads rows as they are once every worker's pushes up to
  // step - 1 are in them. REQUIRES: the plan's route is kServer.
  void AddReads(Step step, StepContext* context);
  // Once the pulls have started: fills context->tables and complete_through for the operations that
  // the device is given next.
  void Receive(StepContext* context, StepTasks* tasks);

  // Queues the device's work after the gradients in context->tables: held rows are updated with
  // context->learning_rate, and what leaves the device is copied to the host.
  void Update(StepContext* context);

  // Once the device has finished the step: fills context->push, which it begins; its wave 0 has its
  // values then. Where context->writes_back, the push also holds every row that only the worker
  // has, so that the servers have the whole model afterwards. Errors: kInvalidArgument (a gradient,
  // or the sum of the ranks' gradients, is not finite: names step, table and key), those of the
  // exchange and the session.
  void Push(StepContext* context, StepTasks* tasks);
  // Once the push has started: what is left of it. Errors: as Push.
  void FinishPush(StepContext* context, StepTasks* tasks);

  // The rows that it holds between steps; null: none.
  const RowSlabs* slabs() const { return slabs_.get(); }

 private:
  RowRoute& RouteOf(const StepContext& context) {
    return *routes_[static_cast<size_t>(context.row_plan.route)];
  }
  void AddPulled(StepContext* context);

  const RowSourceOptions options_;
  PsSession* const session_;
  Device* const device_;
  const int fetch_ahead_;
  std::unique_ptr<RowSlabs> slabs_;    // Null: no rows are held.
  std::unique_ptr<SetLoader> loader_;  // Null: no rows are fixed.
  bool set_is_loaded_ = false;         // for the next step that is fetched
  std::array<std::unique_ptr<RowRoute>, kNumGradientRoutes> routes_;  // Null: not this job's.
  std::unique_ptr<StepTransfers> write_back_transfers_;  // from the first write-back on
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_ROW_SOURCE_H_
