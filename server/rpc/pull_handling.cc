#include "server/rpc/pull_handling.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/base/trace.h"

namespace thermocline {

PullHandling::PullHandling(ServerCore* core, MethodStats* stats, TaskQueue* threads)
    : core_(core), stats_(stats), threads_(threads), resumed_us_(MonotonicMicros()) {
  stats_->Begin();
}

PullTicket PullHandling::Ask(const wire::PullRequest& request, int64_t time_left_us, bool may_wait,
                             Reply reply) {
  const bool replies_here = may_wait || std::none_of(request.tables.begin(), request.tables.end(),
                                                     [this](const wire::KeyRange& keys) {
                                                       return core_->MayReadDisk(keys.table);
                                                     });
  // A READ belongs to no step.
  const Step step = request.kind == wire::PullKind::kTrain ? request.step : kNoStep;
  const TraceArgument rank{"worker", request.header.rank.value()};
  handled_us_ = MonotonicMicros() - resumed_us_;
  const auto on_answer = [this, replies_here, step, rank, held_ns = TraceBegin(),
                          asker = std::this_thread::get_id(),
                          reply = std::move(reply)](absl::StatusOr<wire::PullAnswer> answer) {
    const bool was_held = std::this_thread::get_id() != asker || !is_asking_;
    if (was_held) TraceInterval("hold pull of", step, held_ns, rank);
    if (!was_held && replies_here) {
      const TraceSpan span("answer pull", step, rank);
      return reply(answer);
    }
    threads_->Run([this, step, rank, reply, answer = std::move(answer)] {
      NameTraceThread("handle requests");
      Resume();
      const TraceSpan span("answer pull", step, rank);
      reply(answer);
    });
  };
  const PullTicket ticket = core_->Pull(request, on_answer, time_left_us);
  if (ticket != kNoTicket) is_asking_ = false;
  return ticket;
}

}  // namespace thermocline
