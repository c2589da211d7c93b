#include "server/core/push_ledger.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace thermocline {

absl::StatusOr<PushLedger::Verdict> PushLedger::Judge(WorkerRank rank, Step first,
                                                      Step last) const {
  CHECK_LT(rank.value(), num_workers());
  CHECK_LE(first, last);
  const Step accepted = accepted_through(rank);
  if (last <= accepted) return Verdict::kDuplicate;
  if (first > accepted + 1) return Verdict::kEarly;
  if (first == accepted + 1) return Verdict::kNext;
  return absl::InvalidArgumentError(absl::StrCat(
      "push of rank ", rank.value(), " covers steps ", first.value(), "..", last.value(),
      ", of which those up to ", accepted.value(), " were accepted before"));
}

absl::Status PushLedger::CheckAcknowledged(WorkerRank rank, Step acked_through) const {
  CHECK_LT(rank.value(), num_workers());
  if (acked_through <= accepted_through(rank)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "rank ", rank.value(), " was acknowledged step ", acked_through.value(),
      ", but this server knows of no push beyond step ", accepted_through(rank).value()));
}

void PushLedger::Accept(WorkerRank rank, Step first, Step last) {
  CHECK_LT(rank.value(), num_workers());
  CHECK_EQ(first, accepted_through(rank) + 1);
  CHECK_LE(first, last);
  accepted_through_[rank.value()] = last;
}

}  // namespace thermocline
