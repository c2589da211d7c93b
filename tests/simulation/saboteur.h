// Faults planted in processes, network and disks, so that a test can check that the simulation
// finds them.
#ifndef THERMOCLINE_TESTS_SIMULATION_SABOTEUR_H_
#define THERMOCLINE_TESTS_SIMULATION_SABOTEUR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/wire/messages.h"
#include "server/storage/journal_opener.h"
#include "tests/simulation/sim_random.h"

namespace thermocline {

enum class PlantedFault {
  kNone,
  kForgottenLedger,  // A server starts anew in the same generation, without what it accepted.
  kAppliedTwice,     // A server applies an accepted push once more.
  kArrivalOrder,     // Servers merge the gradients of a step in order of arrival, not of rank.
  kOtherGeneration,  // A request arrives with another generation.
  kEarlyPush,        // A worker's push arrives as that of the step after.
  kStaleRows,        // A server answers a pull one step too early, and claims the right step.
  kLoggedLate,       // A server acknowledges chunks of pushes before it logs them.
  kReplayedTwice,    // A server that recovers takes a record twice.
  kAppliedInReplay,  // A server that recovers applies a push twice, and its ledger doesn't see it.
  kOldGenerations,   // Servers take the messages of generations before their own.
  // Servers are sent a commit as soon as their own shard is written. They refuse it.
  kEarlyCommits,
  kOldBases,           // A server that recovers begins with the base of its generation.
  kNoRequestOrder,     // An abandoned request of the launcher is accepted after later ones.
  kSilentWorkers,      // Workers do not probe servers that they don't read from.
  kUnsyncedShards,     // The files that a server writes for a checkpoint are not synced.
  kSharedFileNames,    // A server's file takes the place of an earlier generation's of its step.
  kUnsyncedNames,      // The launcher does not sync the names of its files.
  kOldEvaluations,     // The next generation uses evaluations of the one before.
  kSameGeneration,     // The job goes back to a checkpoint without a new generation.
  kExtraRestarts,      // Servers are started again beyond the job's limit.
  kMissingShards,      // A shard that is being written is taken for written.
  kBadDataIsLoss,      // The job's own fault is taken for the loss of a worker.
  kMissedEnds,         // The launcher does not notice that a worker has ended.
  kBusyIsBroken,       // Workers treat a refusal as if the server did not answer.
  kPullsCount,         // A pull counts as a lookup, too.
  kUncountedLookups,   // Servers do not count lookups without a gradient.
  kZeroGradients,      // Servers take lookups without a gradient for gradients of zero.
  kNoAdmission,        // Servers apply the gradients of keys that were looked up too seldom.
  kNothingForgotten,   // Servers keep the rows that no push has reached for too long.
  kNewestSchedule,     // A job that goes back goes on with the stretch that came last.
  kLimitsNotReplayed,  // A server that recovers keeps the rows beyond a table's limit.
  // The faults from here on need workers that exchange blocks.
  kOwnersArrivalOrder,  // An owner merges gradients in another order than that of the ranks.
  kOwnLast,             // Its own come last.
  kEvictedEarly,        // A row leaves the cache before the gradients of the step before are in it.
  kStaleHeldRows,       // A row is sent as it was before the update of the step before.
  kOldBlocks,           // Chunks of an earlier generation's streams are taken.
  kNeverSentAgain,      // What a broken stream has lost is said to be here.
  kSharedCredit,        // A block that is held takes the room of all phases.
  kReceiptsOverwrite,   // A receipt takes the place of one that waits and may be newer.
  kLeavesByReceipts,    // A rank leaves once all it has sent has arrived, not before.
  kWrittenEarly,        // Rows are written to the servers as they were before their step's update.
  kPullsEarly,          // Pulls do not wait for the pushes that their rows must have.
  kWaitsFirst,          // A rank waits for gradients before it has sent its own.
  kPushesLate,          // A rank waits for the next step's rows before its push is whole.
};

inline bool NeedsExchange(PlantedFault fault) { return fault >= PlantedFault::kOwnersArrivalOrder; }

class Saboteur {
 public:
  // `staleness_steps`: the job's; kArrivalOrder needs it to be 0.
  Saboteur(PlantedFault fault, uint64_t seed, uint32_t staleness_steps);

  // Whether the fault is to happen now that a message arrives at a server: kForgottenLedger, once.
  bool ForgetsNow();

  // Whether a record that a server replays now is to come twice: kReplayedTwice, once.
  bool RepeatsNow();
  // Faults that are there all the time.
  bool Has(PlantedFault fault) const { return fault_ == fault; }

  // Return what the server gets in place of the request, and the worker in place of the answer.
  wire::PushChunk Tamper(ServerIndex server, wire::PushChunk chunk);
  wire::PullRequest Tamper(wire::PullRequest request);
  wire::PushChunk TamperReplayed(ServerIndex server, wire::PushChunk chunk);
  absl::StatusOr<wire::PushAnswer> TamperAnswer(const wire::PushChunk& sent,
                                                absl::StatusOr<wire::PushAnswer> answer) const;
  absl::StatusOr<wire::PullAnswer> TamperAnswer(const wire::PullRequest& sent,
                                                absl::StatusOr<wire::PullAnswer> answer) const;

 private:
  bool TakesForBroken(const absl::Status& status) const {
    return fault_ == PlantedFault::kBusyIsBroken && absl::IsResourceExhausted(status);
  }
  void ApplyAgain(ServerIndex server, wire::PushChunk* chunk);
  void GiveZeroGradients(wire::PushChunk* chunk);
  WorkerRank RankByArrival(ServerIndex server, const wire::PushChunk& chunk);

  const PlantedFault fault_;
  const uint32_t staleness_steps_;
  SimRandom random_;
  int64_t messages_left_;  // Until a fault that happens once.

  std::optional<std::pair<ServerIndex, wire::PushChunk>> repeated_;           // kApplied...
  std::map<std::pair<ServerIndex, Step>, std::vector<WorkerRank>> arrivals_;  // kArrivalOrder
  std::optional<std::pair<WorkerRank, Step>> early_;                          // kEarlyPush
  std::map<TableId, size_t> dims_;  // kZeroGradients: of the tables that had a gradient so far.
};

// Journals that a saboteur tampers with: what they replay, and when they write.
class SabotagedJournals : public JournalOpener {
 public:
  // `saboteur` outlives this.
  SabotagedJournals(std::unique_ptr<JournalOpener> real, ServerIndex server, Saboteur* saboteur);

  absl::StatusOr<std::unique_ptr<PushJournal>> Open(const JournalSpec& spec, Visit visit) override;

 private:
  const std::unique_ptr<JournalOpener> real_;
  const ServerIndex server_;
  Saboteur* const saboteur_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SABOTEUR_H_
