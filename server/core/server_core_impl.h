// ServerCore's state and steps. They outlive the ServerCore itself while a task of the scheduler or
// of a checkpoint runs.
#ifndef THERMOCLINE_SERVER_CORE_SERVER_CORE_IMPL_H_
#define THERMOCLINE_SERVER_CORE_SERVER_CORE_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/request_order.h"
#include "common/base/timing.h"
#include "server/checkpoint/checkpoint_cuts.h"
#include "server/checkpoint/shard_writer.h"
#include "server/core/push_state.h"
#include "server/core/request_validation.h"
#include "server/core/server_core.h"
#include "server/core/step_applier.h"
#include "server/core/waiting_pulls.h"
#include "server/tables/table_set.h"

namespace thermocline {

absl::Status ShuttingDown();

// A configured server's job: its tables, and the checks and the applier of its requests.
// Thread-safe but for `applier`, which one thread at a time may use.
struct ServedJob {
  ServedJob(const ServerConfig& job_config, int apply_threads, std::vector<TableSpill> spills);
  absl::StatusOr<TableSet::Entry*> FindTable(TableId table);  // Errors: kNotFound.
  void FillStats(ServerStats* stats) const;

  const ServerConfig config;
  const RequestValidation validation;
  TableSet tables;
  StepApplier applier;
};

struct ServerCore::Impl : std::enable_shared_from_this<ServerCore::Impl> {
  Impl(const ServerLimits& server_limits, Scheduler* a_scheduler, JournalOpener* journal_opener,
       const CheckpointIo& checkpoint_io, const SpillIo& spill_io)
      : limits(server_limits),
        scheduler(a_scheduler),
        journals(journal_opener),
        checkpoints(checkpoint_io),
        spill(spill_io),
        waiting_pulls(server_limits.max_held_pulls, server_limits.hold_us) {}

  // The job, and where its rows come from.
  absl::StatusOr<ServedJob*> FindJob() const;
  absl::Status Configure(const ServerConfig& config);
  absl::Status CheckConfigured(const ServerConfig& config) const;
  absl::Status CheckMeans(const ServerConfig& config) const;
  absl::Status CompareConfigured(const ServerConfig& config) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::StatusOr<std::vector<TableSpill>> OpenSpills(const ServerConfig& config) const;
  absl::Status Recover(ServedJob* new_job);
  absl::StatusOr<CutHistory> LoadBase(ServedJob* new_job);
  absl::Status ReplayJournal(ServedJob* new_job, Step base);

  // Pulls.
  PullTicket Pull(const wire::PullRequest& request, PullDone done, int64_t time_left_us);
  absl::StatusOr<wire::PullAnswer> WithRowCounts(Step step, wire::PullAnswer answer);
  void DropPull(PullTicket ticket);
  void ArmTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void ExpireHeldPulls();

  // Pushes.
  void Push(wire::PushChunk chunk, PushDone done);
  absl::StatusOr<wire::PushAnswer> TakeChunk(wire::PushChunk chunk, bool* apply)
      ABSL_LOCKS_EXCLUDED(accept_mutex, mutex);

  // The thread that sets `applying` applies; no other touches the applier or changes rows.
  bool StartApplying() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  enum class Steps { kAll, kOne };
  void RunApplier(ServedJob* current_job, Steps steps = Steps::kAll);
  void ScheduleApplier();
  absl::Status ApplyStep(ServedJob* current_job, PushState::CompleteStep step);
  bool CanVisitRows() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return !applying || !apply_error.ok();
  }

  void ComputeDigest(const std::string& job_id, uint64_t generation, DigestDone done);
  void AnswerDigest(const ServedJob& current_job, const DigestDone& done);
  absl::Status VisitRows(TableId table, const RowVisitor& visit);
  void FillStats(ServerStats* stats) const;
  void Shutdown();

  // Cuts and the checkpoints written of them, in server_core_checkpoint.cc.
  void Checkpoint(const CheckpointRequest& request, CheckpointDone done);
  absl::Status CheckCommitted(const ServerConfig& config, Step step);
  absl::Status TakeCheckpointAction(const CheckpointRequest& request, CheckpointShard* to_remove)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool CutIsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void BeginCut(ServedJob* current_job, Step cut, Step base_step);
  bool OldImagesAreFull() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void GoOnAfterRead() ABSL_LOCKS_EXCLUDED(mutex);
  void EndCut(int64_t begun_us, const absl::StatusOr<CheckpointShard>& shard);
  void RemoveFiles(const CheckpointShard& shard);

  const ServerLimits limits;
  Scheduler* const scheduler;
  JournalOpener* const journals;  // May be null.
  const CheckpointIo checkpoints;
  const SpillIo spill;

  std::atomic<ServedJob*> job{nullptr};  // Set once, by Configure.
  std::atomic<bool> recovering{false};
  std::atomic<uint64_t> loaded_rows{0};
  std::atomic<uint64_t> replayed_chunks{0};
  std::unique_ptr<PushJournal> journal;  // Fixed once `job` is set; null without durability.
  mutable StageTimer validate_timer, accept_timer;
  StageTimer read_timer;

  // Held while a chunk is taken and written to the journal, so that the journal has chunks in the
  // order in which they count. Pulls, stats and the applier don't wait for it.
  absl::Mutex accept_mutex ABSL_ACQUIRED_BEFORE(mutex);
  PushRecorder recorder ABSL_GUARDED_BY(accept_mutex);

  mutable absl::Mutex mutex;  // Never held during a disk operation.
  std::unique_ptr<ServedJob> owned_job ABSL_GUARDED_BY(mutex);
  absl::Status recovery ABSL_GUARDED_BY(mutex);  // How recovery ended, once it has.
  double recovery_s ABSL_GUARDED_BY(mutex) = 0;
  // Engaged once the base is loaded, and so with `job`.
  std::optional<PushState> pushes ABSL_GUARDED_BY(mutex);
  std::optional<CheckpointCuts> cuts ABSL_GUARDED_BY(mutex);
  RequestOrder checkpoint_requests ABSL_GUARDED_BY(mutex);
  // Set while a cut is being written.
  std::shared_ptr<ShardWriter> shard_writer ABSL_GUARDED_BY(mutex);
  // While old images of the rows of this cut take more memory, no step is applied.
  uint64_t max_old_image_bytes ABSL_GUARDED_BY(mutex) = 0;
  bool waits_for_images ABSL_GUARDED_BY(mutex) = false;  // A complete step waits for that reason.
  WaitingPulls waiting_pulls ABSL_GUARDED_BY(mutex);
  bool applying ABSL_GUARDED_BY(mutex) = false;
  absl::Status apply_error ABSL_GUARDED_BY(mutex);  // After an error nothing is applied any more.
  bool shut_down ABSL_GUARDED_BY(mutex) = false;
  // One digest at a time. The applying thread computes it; another may begin only after a pause as
  // long as the computation.
  bool digest_wanted ABSL_GUARDED_BY(mutex) = false;
  DigestDone digest_waiting ABSL_GUARDED_BY(mutex);  // Set until the computation begins.
  std::optional<DigestAnswer> last_digest ABSL_GUARDED_BY(mutex);
  int64_t next_digest_us ABSL_GUARDED_BY(mutex) = INT64_MIN;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_SERVER_CORE_IMPL_H_
