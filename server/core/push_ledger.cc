#include "server/core/push_ledger.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace thermocline {

PushLedger::Verdict PushLedger::Judge(WorkerRank rank, Step step) const {
  CHECK_LT(rank.value(), num_workers());
  const Step accepted = accepted_through(rank);
  if (step <= accepted) return Verdict::kDuplicate;
  return step == accepted + 1 ? Verdict::kNext : Verdict::kEarly;
}

absl::Status PushLedger::CheckAcknowledged(WorkerRank rank, Step acked_through) const {
  CHECK_LT(rank.value(), num_workers());
  if (acked_through <= accepted_through(rank)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "rank ", rank.value(), " was acknowledged step ", acked_through.value(),
      ", but this server knows of no push beyond step ", accepted_through(rank).value()));
}

void PushLedger::Accept(WorkerRank rank, Step step) {
  CHECK(Judge(rank, step) == Verdict::kNext);
  accepted_through_[rank.value()] = step;
}

}  // namespace thermocline
