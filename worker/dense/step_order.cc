#include "worker/dense/step_order.h"

#include <utility>

#include "worker/rows/write_back.h"

namespace thermocline {

void StepOrder::Fetch(const std::shared_ptr<StepContext>& context) {
  rows_.AddPulls(context.get());
  dense_.AddPulls(context.get());
  context->pulls.Start(&session_, context->step() - 1, context);
}

void StepOrder::Receive(StepContext* context, StepTasks* tasks) {
  tasks->Then([this] { return CheckOwesNothing(); });
  rows_.Receive(context, tasks);
  dense_.Receive(context, tasks);
}

void StepOrder::Push(const std::shared_ptr<StepContext>& context, StepTasks* tasks) {
  rows_.Push(context.get(), tasks);
  tasks->Then([this, context, tasks] {
    dense_.AddPush(context.get(), tasks);
    tasks->Then([this, context] { return StartPush(context); });
    return absl::OkStatus();
  });
}

absl::Status StepOrder::StartPush(const std::shared_ptr<StepContext>& context) {
  StepPush& push = context->push;
  if (!push.work.lent.empty()) push.work.lent.resize(push.work.waves.size());
  session_.StartPush(std::move(push.work), [context, write_back = push.write_back,
                                            kept = std::move(push.kept)](const absl::Status&) {
    if (write_back != nullptr) write_back->End();
  });
  return session_.ReleaseWave(context->step(), 0);
}

void StepOrder::FinishPush(StepContext* context, StepTasks* tasks) {
  dense_.FinishPush(context, tasks);
  rows_.FinishPush(context, tasks);
  tasks->Then([this, step = context->step()] {
    if (exchange_ != nullptr) exchange_->NotePushed(step);
    return absl::OkStatus();
  });
}

absl::Status StepOrder::CheckOwesNothing() const {
  return exchange_ == nullptr ? absl::OkStatus() : exchange_->CheckOwesNothing();
}

}  // namespace thermocline
