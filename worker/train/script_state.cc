#include "worker/train/script_state.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/trace.h"
#include "common/math/script_state_rows.h"

namespace thermocline {

ScriptState::Rows ScriptState::MakeRows(int64_t first, int64_t last) const {
  std::vector<std::vector<Key>> of_server(cluster_.num_servers());
  for (int64_t row = first; row < last; ++row) {
    const auto key = static_cast<Key>(row);
    of_server[cluster_.ServerOfHash(KeyHash(TableSalt(table_), key)).value()].push_back(key);
  }
  Rows rows;
  rows.server_begin.push_back(0);
  for (const std::vector<Key>& keys : of_server) {
    rows.keys.insert(rows.keys.end(), keys.begin(), keys.end());
    rows.server_begin.push_back(static_cast<int32_t>(rows.keys.size()));
  }
  rows.counts.resize(rows.keys.size());
  std::fill(rows.counts.begin(), rows.counts.end(), 0);
  rows.values.resize(rows.keys.size() * kDenseBlockFloats);
  return rows;
}

// Load
// ------------------------------------------------------------------------------------------------

void ScriptState::Load(Step step, bool, StepTasks* tasks) {
  loaded_ = MakeRows(0, 1);
  Pull(step, &loaded_);
  tasks->After(StepWait::For(&loads_), [this, step, tasks] { return TakeFirst(step, tasks); });
}

void ScriptState::Pull(Step step, Rows* rows) {
  loads_.Begin(cluster_.num_servers());
  PullWork& pull = loads_.work(StepPulls::kLatest);
  pull.kind = wire::PullKind::kRead;
  pull.step = step;
  AddPull(SharesOf(table_, *rows), absl::MakeSpan(rows->values), &pull.slices);
  loads_.Start(session_, step - 1, nullptr);
}

absl::Status ScriptState::TakeFirst(Step step, StepTasks* tasks) {
  RETURN_IF_ERROR(loads_.status());
  ASSIGN_OR_RETURN(num_rows_, NumRowsOfState(loaded_.values));
  if (num_rows_ == 0) return script_->SendState("");
  loaded_values_ = std::move(loaded_.values);
  loaded_ = MakeRows(1, num_rows_);
  Pull(step, &loaded_);
  tasks->After(StepWait::For(&loads_), [this] { return TakeRest(); });
  return absl::OkStatus();
}

absl::Status ScriptState::TakeRest() {
  RETURN_IF_ERROR(loads_.status());
  loaded_values_.resize(num_rows_ * kDenseBlockFloats);
  for (size_t i = 0; i < loaded_.keys.size(); ++i) {
    std::copy_n(&loaded_.values[i * kDenseBlockFloats], kDenseBlockFloats,
                &loaded_values_[loaded_.keys[i] * kDenseBlockFloats]);
  }
  loaded_ = Rows();
  ASSIGN_OR_RETURN(const std::string state, StateOfRows(loaded_values_));
  loaded_values_ = {};
  return script_->SendState(state);
}

// Push
// ------------------------------------------------------------------------------------------------

void ScriptState::AddPush(StepContext* context, StepTasks* tasks) {
  if (!context->writes_back) return;
  tasks->Then([this] { return script_->AskForState(); });
  tasks->Then([this, context] { return PushState(context); });
}

absl::Status ScriptState::PushState(StepContext* context) {
  const TraceSpan span("save script state");
  ASSIGN_OR_RETURN(ScriptMessage answer, script_->Await(TC_STATE));
  const std::vector<float> by_row = RowsOfState(answer.state);
  answer = {};  // A state may be large: each copy of it goes as soon as the next is made.
  const auto used_rows = static_cast<int64_t>(by_row.size() / kDenseBlockFloats);
  num_rows_ = std::max(num_rows_, used_rows);
  auto rows = std::make_shared<Rows>(MakeRows(0, num_rows_));  // Rows beyond used_rows stay 0.
  for (size_t i = 0; i < rows->keys.size(); ++i) {
    if (rows->keys[i] >= static_cast<Key>(used_rows)) continue;
    std::copy_n(&by_row[rows->keys[i] * kDenseBlockFloats], kDenseBlockFloats,
                &rows->values[i * kDenseBlockFloats]);
  }
  PushesByServer& wave = context->push.work.waves.emplace_back(cluster_.num_servers());
  thermocline::AddPush(SharesOf(table_, *rows), wire::PushKind::kAssign, rows->values, &wave);
  context->push.kept.push_back(std::move(rows));
  return absl::OkStatus();
}

void ScriptState::FinishPush(StepContext* context, StepTasks* tasks) {
  if (!context->writes_back) return;
  tasks->Then(
      [this, context] { return session_->ReleaseWave(context->step(), PsSession::kLastWave); });
}

}  // namespace thermocline
