// What the user's script keeps in checkpoints, as rows of the table JobTables::script_state: the
// servers hold it as they hold all else of the model, so that checkpoints, their digests and going
// back need nothing of their own for it (common/math/script_state_rows.h).
#ifndef THERMOCLINE_WORKER_TRAIN_SCRIPT_STATE_H_
#define THERMOCLINE_WORKER_TRAIN_SCRIPT_STATE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/math/table_spec.h"
#include "worker/dense/dense_parameters.h"
#include "worker/rows/step_pulls.h"
#include "worker/session/ps_session.h"
#include "worker/train/script_run.h"

namespace thermocline {

// Not thread-safe.
class ScriptState final : public DenseParameters {
 public:
  // All that is pointed to outlives it. table: JobTables::script_state.
  ScriptState(const TableLayout& table, uint32_t num_servers, ScriptRun* script, PsSession* session)
      : table_(table.id), cluster_(num_servers), script_(script), session_(session) {}

  Home home() const override { return Home::kHere; }
  // Sends the script what a checkpoint has kept for it; an empty state where that is nothing.
  void Load(Step step, bool with_state, StepTasks* tasks) override;
  void AddPulls(StepContext*) const override {}
  void Receive(StepContext*, StepTasks*) override {}
  void Update(StepContext*) override {}
  // Where context->writes_back, asks the script for its state, and waits for it. The script answers
  // when it asks for its next batch, so the state has all that it does in this step.
  void AddPush(StepContext* context, StepTasks* tasks) override;
  void FinishPush(StepContext* context, StepTasks* tasks) override;
  void Settle(StepTasks*) override {}

 private:
  // Some rows by server.
  struct Rows {
    UninitializedVector<Key> keys;
    std::vector<int32_t> server_begin;
    UninitializedVector<uint32_t> counts;  // zeros
    std::vector<float> values;             // [keys, 256]
  };
  Rows MakeRows(int64_t first, int64_t last) const;
  void Pull(Step step, Rows* rows);
  absl::Status TakeFirst(Step step, StepTasks* tasks);
  absl::Status TakeRest();
  absl::Status PushState(StepContext* context);

  const TableId table_;
  const ClusterMap cluster_;
  ScriptRun* const script_;
  PsSession* const session_;
  // Rows that the servers have. A state that shrinks leaves rows of zeros: none is deleted.
  int64_t num_rows_ = 0;

  StepPulls loads_;
  Rows loaded_;
  std::vector<float> loaded_values_;  // [num_rows_, 256] by row
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_SCRIPT_STATE_H_
