// The order of a training step's parts: rows (row_source.h) and dense parameters
// (dense_parameters.h), which share the step's pulls and its push, and the exchange between
// workers. For each step:
//
//   Fetch       its pulls begin
//   Receive     what it reads is on the device; then the model computes, and
//               RowSource::Update queues the update of held rows
//   Push        its push begins with the gradients of the rows: now the servers can answer the next
//               step's fetch
//   FinishPush  dense gradients, or dense parameters, and what else the push waits for
//
// A machine without waits: calls add tasks (step_tasks.h), and a call is over when its tasks have
// run. The trainer waits for them in its thread; the simulation asks.
#ifndef THERMOCLINE_WORKER_DENSE_STEP_ORDER_H_
#define THERMOCLINE_WORKER_DENSE_STEP_ORDER_H_

#include <memory>

#include "absl/status/status.h"
#include "worker/dense/dense_parameters.h"
#include "worker/exchange/exchange.h"
#include "worker/rows/row_source.h"
#include "worker/rows/step_context.h"
#include "worker/rows/step_tasks.h"
#include "worker/session/ps_session.h"

namespace thermocline {

// Not thread-safe.
class StepOrder {
 public:
  // exchange: null where there is none. All that is pointed to outlives it.
  StepOrder(RowSource* rows, DenseParameters* dense, PsSession* session, Exchange* exchange)
      : rows_(*rows), dense_(*dense), session_(*session), exchange_(exchange) {}

  void Fetch(const std::shared_ptr<StepContext>& context);
  // Errors: of the session, the exchange, the device.
  void Receive(StepContext* context, StepTasks* tasks);
  // Once the device has finished the step. The session holds the context until the push is
  // acknowledged. Errors: as RowSource::Push.
  void Push(const std::shared_ptr<StepContext>& context, StepTasks* tasks);
  // Once the device has been given what makes the dense gradients. Errors: as RowSource::FinishPush
  // and DenseParameters::FinishPush.
  void FinishPush(StepContext* context, StepTasks* tasks);

  // Before a wait for the pipeline, whose planning waits for other ranks, or for rows from servers,
  // which wait for all ranks' pushes. Errors: as Exchange::CheckOwesNothing.
  absl::Status CheckOwesNothing() const;

 private:
  absl::Status StartPush(const std::shared_ptr<StepContext>& context);

  RowSource& rows_;
  DenseParameters& dense_;
  PsSession& session_;
  Exchange* const exchange_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DENSE_STEP_ORDER_H_
