#include "tests/simulation/sim_worker.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/periodic_checkpoint.h"
#include "common/job/data_place.h"
#include "proto/job.pb.h"
#include "proto/parameter_server.pb.h"
#include "worker/session/retry_policy.h"

namespace thermocline {
namespace {

// Notes when an answer has come, since the parts of a step that wait for answers get no call.
class WakingTransport : public Transport {
 public:
  WakingTransport(std::unique_ptr<Transport> real, std::function<void()> wake)
      : wake_(std::move(wake)), real_(std::move(real)) {}

  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    real_->Pull(server, call, deadline_us, Waking(std::move(done)));
  }
  void Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override {
    real_->Push(server, call, deadline_us, Waking(std::move(done)));
  }
  void Close() override { real_->Close(); }

 private:
  template <typename Answer>
  std::function<void(Answer)> Waking(std::function<void(Answer)> done) {
    return [this, done = std::move(done)](Answer answer) {
      done(std::move(answer));
      wake_();
    };
  }

  const std::function<void()> wake_;
  const std::unique_ptr<Transport> real_;
};

}  // namespace

SimWorker::SimWorker(const SimWorkerOptions& options, const PsSessionOptions& session_options,
                     OnLost on_lost, OnScored on_scored, std::unique_ptr<Transport> transport,
                     Scheduler* scheduler, SequentialModel* model,
                     std::vector<std::string>* failures)
    : options_(options),
      on_lost_(std::move(on_lost)),
      on_scored_(std::move(on_scored)),
      scheduler_(scheduler, ended_, 0, 0),
      model_(model),
      failures_(failures),
      random_(options.seed),
      transport_(std::make_unique<WakingTransport>(std::move(transport), [this] { Wake(); })),
      session_(WithFailures(session_options), transport_.get(), &scheduler_),
      reference_(options.model == nullptr ? nullptr
                                          : std::make_unique<SimModelReference>(options.model)),
      progress_(session_options.job_id, options.rank, /*fd=*/-1),
      checkpoints_(options.start_step),
      step_(options.start_step) {
  WatchWaits();
}

SimWorker::~SimWorker() {
  *ended_ = true;
  session_.Fail(absl::CancelledError("simulated: the worker died"));
}

// The trained steps don't learn why their pushes fail, so the session's failure fails the worker.
PsSessionOptions SimWorker::WithFailures(PsSessionOptions session) {
  session.on_failure = [this](const absl::Status& error) {
    if (training_ != nullptr) Fail(error);
  };
  return session;
}

void SimWorker::Start() {
  is_started_ = true;
  if (is_introduced_ || !options_.awaits_others) Begin();
}

void SimWorker::Introduce() {
  if (std::exchange(is_introduced_, true)) return;
  if (is_started_ && options_.awaits_others) Begin();
}

// An evaluation that is due where the worker begins, or a change, comes first.
void SimWorker::Begin() {
  if (options_.schedule != nullptr) {
    auto stretch = SimStretch::At(*options_.schedule, options_.schedule_state, step_);
    if (!stretch.ok()) return Fail(stretch.status().ToString());
    stretch_ = *std::move(stretch);
    options_.on_stretch(stretch_->state());
  }
  if (step_ > Step(0) && (EvaluatesAfter(step_ - 1) || ChangesAfter(step_ - 1))) {
    step_ = step_ - 1;
    return Evaluate();
  }
  if (step_.value() < options_.num_steps) return BeginStep();
  step_ = step_ - 1;  // Nothing is left to train: an earlier generation has pushed the last step.
  EndTraining();
}

absl::StatusOr<CheckpointReply> SimWorker::Checkpoint(const CheckpointRequest& request) {
  const Step step(request.step());
  RETURN_IF_ERROR(order_.Take(request.sequence()));
  if (request.action() == CheckpointRequest::NAME_CUT) RETURN_IF_ERROR(checkpoints_.Name(step));
  if (request.action() == CheckpointRequest::CALL_OFF) checkpoints_.CallOff(step);
  CheckpointReply reply;
  reply.set_accepted_through(session_.acked_through().value());
  return reply;
}

// Its first step, or the next one.
void SimWorker::BeginStep() {
  if (options_.join == nullptr) return PullStep();
  if (random_.Chance(0.2)) ReadAside();
  if (training_ != nullptr) return training_->BeginNextStep();
  training_ = options_.join(this, &session_, &scheduler_, [this] { Wake(); });
  WatchWaits();
  training_->Begin();
}

void SimWorker::Wake() {
  if (training_ == nullptr || std::exchange(is_woken_, true)) return;
  scheduler_.RunAfter(0, [this] {
    is_woken_ = false;
    training_->Work();
    Leave();
  });
}

void SimWorker::WatchWaits() {
  WorkerProgress::Watched watched;
  watched.session = &session_;
  if (training_ != nullptr) watched.exchange = training_->exchange();
  progress_.Watch(watched);
}

// A worker's keys and gradients depend only on the job, its rank, the step and the batch: a
// repeated step is the same, also with another number of servers.
SimRandom SimWorker::DataRandom(Step step, TableId table, Key key) const {
  const uint64_t batch = stretch_.has_value() ? stretch_->BatchOf(step) : 0;
  const uint64_t job = Mix64(options_.data_seed ^ Mix64(options_.rank.value()) ^ batch);
  return SimRandom(Mix64(job ^ static_cast<uint64_t>(step.value())) ^
                   KeyHash(TableSalt(table), key));
}

std::vector<Key> SimWorker::ChooseKeys(SimRandom* random) const {
  std::set<Key> keys;
  const int n = static_cast<int>(random->Below(options_.keys_per_table + 1));
  for (int i = 0; i < n; ++i) keys.insert(Mix64(random->Below(options_.num_keys)));
  return {keys.begin(), keys.end()};
}

std::vector<Key> SimWorker::KeysOf(Step step, const TableLayout& table) const {
  for (const DenseTable& tensor : options_.dense) {
    if (tensor.layout.id != table.id) continue;
    std::vector<Key> keys(tensor.num_blocks());
    std::iota(keys.begin(), keys.end(), 0);
    return keys;
  }
  if (options_.model != nullptr) return options_.model->KeysOf(*BatchOf(step), table.id);
  SimRandom random = DataRandom(step, TableId(0), /*key=*/0);
  for (const TableLayout& before : options_.tables) {
    if (before.id == table.id) break;
    ChooseKeys(&random);
  }
  return ChooseKeys(&random);
}

// Without a model: one sample, which looks up all keys.
std::unique_ptr<Batch> SimWorker::BatchOf(Step step) const {
  if (options_.model != nullptr) {
    SimRandom random = DataRandom(step, TableId(0), /*key=*/0);
    return options_.model->MakeBatch(step, options_.rank, options_.num_keys, &random);
  }
  auto batch = std::make_unique<Batch>();
  batch->step = step;
  batch->size = 1;
  batch->labels.assign(1, 0.0f);
  for (const TableLayout& table : options_.tables) {
    if (IsDense(table.id)) continue;
    FeatureLookups& lookups = batch->features.emplace_back();
    for (const Key key : KeysOf(step, table)) {
      lookups.keys.resize(lookups.keys.size() + LookupsOf(step, table.id, key), key);
    }
    lookups.offsets.assign(1, 0);
    lookups.offsets.push_back(static_cast<int32_t>(lookups.keys.size()));
  }
  return batch;
}

uint32_t SimWorker::LookupsOf(Step step, TableId table, Key key) const {
  if (IsDense(table)) return 0;
  SimRandom random = DataRandom(step, table, key);
  random.Next();  // MakeUpdates asks first whether the row is only read.
  return 1 + static_cast<uint32_t>(random.Below(3));
}

bool SimWorker::IsDense(TableId table) const {
  return std::any_of(options_.dense.begin(), options_.dense.end(),
                     [&](const DenseTable& tensor) { return tensor.layout.id == table; });
}

void SimWorker::PullStep() {
  const auto blocks = std::make_shared<ServerBlocks>(options_.num_servers);
  for (const TableLayout& table : options_.tables) {
    for (const Key key : KeysOf(step_, table)) blocks->AddRead(table.id, key, table.dim);
  }
  PullWork work;
  work.step = step_;
  // Its own last push must be in the rows, or need not be.
  if (random_.Chance(0.5)) work.after_step = step_ - 1;
  work.slices = blocks->PullSlices();
  session_.Pull(std::move(work),
                [this, blocks, after_step = work.after_step](absl::Status status, Step through) {
                  if (status.ok() && through < after_step) {
                    Fail(absl::StrCat("rows lack the push of step ", after_step.value()));
                  }
                  OnPulled(blocks->rows(), status, through);
                });
  if (random_.Chance(0.2)) ReadAside();
}

void SimWorker::OnPulled(const std::vector<RowsOfTable>& rows, const absl::Status& status,
                         Step complete_through) {
  if (!status.ok()) return Fail(status);
  max_staleness_ =
      std::max<uint64_t>(max_staleness_, std::max<int64_t>(0, step_ - 1 - complete_through));
  if (complete_through < step_ - 1 - options_.staleness_steps) {
    Fail(absl::StrCat("rows only complete through ", complete_through.value()));
  }
  // In sync mode no server can have applied this step yet.
  const Step newest = options_.staleness_steps == 0 ? step_ - 1 : model_->complete_through();
  CheckRows(rows, complete_through, newest);
  Compute(rows);
}

void SimWorker::OnRows(Step step, const std::vector<RowsOfTable>& rows) {
  if (step != step_) Fail(absl::StrCat("the training is at step ", step.value()));
  CheckRows(rows, step_ - 1, step_ - 1);
  Compute(rows);
}

void SimWorker::Compute(const std::vector<RowsOfTable>& rows) {
  std::vector<ModelUpdate> updates =
      reference_ == nullptr ? MakeUpdates(rows) : reference_->UpdatesOf(BatchOf(step_), rows);
  if (options_.compute_us == 0) return PushStep(updates);
  scheduler_.RunAfter(random_.Between(0, options_.compute_us),
                      [this, updates = std::move(updates)] { PushStep(updates); });
}

// An evaluation read beside the training, at a step boundary, of rows that no worker holds.
void SimWorker::ReadAside() {
  const auto blocks = std::make_shared<ServerBlocks>(options_.num_servers);
  for (const TableLayout& table : options_.tables) {
    if (options_.held.count(table.id) > 0) continue;
    for (const Key key : ChooseKeys(&random_)) blocks->AddRead(table.id, key, table.dim);
  }
  PullWork work;
  work.kind = wire::PullKind::kRead;
  work.step = step_;
  work.slices = blocks->PullSlices();
  ++reads_outstanding_;
  session_.Pull(std::move(work), [this, blocks, step = step_](absl::Status status, Step through) {
    --reads_outstanding_;
    if (!status.ok()) return Fail(status);
    if (through < step - 1) Fail(absl::StrCat("read is only complete to ", through.value()));
    CheckRows(blocks->rows(), through, model_->complete_through());
  });
}

bool SimWorker::EvaluatesAfter(Step step) const {
  if (options_.evaluate_every_steps == 0) return false;
  thermocline::Evaluate policy;
  policy.set_every_steps(options_.evaluate_every_steps);
  const int64_t steps = step.value() + 1;
  return EvaluationIsDue(policy, steps, /*pass_ended=*/0) || steps >= options_.num_steps;
}

bool SimWorker::ChangesAfter(Step step) const {
  return stretch_.has_value() && stretch_->EndsWith(step) && stretch_->IsScored();
}

bool SimWorker::WritesBackAt(Step step) const {
  return IsPeriodicCheckpoint(step, options_.checkpoint_every_steps) || named_.count(step) > 0 ||
         EvaluatesAfter(step) || step.value() + 1 == options_.num_steps;
}

// Rank 0 scores the model after this step; all workers wait for the decision.
void SimWorker::Evaluate() {
  waits_for_decision_ = true;
  if (options_.rank == WorkerRank(0)) Score();
  GoOn();
}

void SimWorker::Score() {
  const auto blocks = std::make_shared<ServerBlocks>(options_.num_servers);
  for (const TableLayout& table : options_.tables) {
    for (uint64_t i = 0; i < options_.num_keys; ++i) {
      blocks->AddRead(table.id, Mix64(i), table.dim);
    }
  }
  PullWork work;
  work.kind = wire::PullKind::kRead;
  work.step = step_ + 1;
  work.slices = blocks->PullSlices();
  ++reads_outstanding_;
  session_.Pull(std::move(work), [this, blocks](const absl::Status& status, Step) {
    --reads_outstanding_;
    if (!status.ok()) return Fail(status);
    CheckRows(blocks->rows(), step_, step_);  // Nothing of a later step is in them.
    ModelScore score;
    for (const RowsOfTable& rows : blocks->rows()) {
      const size_t dim = rows.values.size() / rows.keys.size();
      for (size_t i = 0; i < rows.keys.size(); ++i) {
        score.Add(rows.table, rows.keys[i], absl::MakeConstSpan(rows.values).subspan(i * dim, dim));
      }
    }
    std::optional<ScheduleState> next;
    if (ChangesAfter(step_)) next = stretch_->Next(score.value());
    on_scored_(step_, score.value(), next);
  });
}

void SimWorker::Decide(Step step, bool stop, const std::string& data_place) {
  if (step < decided_) return;
  decided_ = step;
  stop_ = stop;
  decided_place_ = data_place;
  GoOn();
}

void SimWorker::GoOn() {
  if (!waits_for_decision_ || decided_ < step_) return;
  waits_for_decision_ = false;
  const bool stops = decided_ == step_ && stop_;
  if (stops || step_.value() + 1 >= options_.num_steps) return EndTraining();
  Advance();
}

// To the next step, and to the stretch that it is of.
void SimWorker::Advance() {
  if (stretch_.has_value() && stretch_->EndsWith(step_)) {
    ScheduleState next = stretch_->Next(std::nullopt);
    if (ChangesAfter(step_)) {
      if (decided_ != step_ || FirstStepAt(decided_place_) != step_ + 1) {
        return Fail("the launcher decided on a change without the stretch behind it");
      }
      next = ReadDataPlace(decided_place_).value();
    }
    stretch_->GoTo(next);
    options_.on_stretch(next);
  }
  step_ = step_ + 1;
  BeginStep();
}

void SimWorker::EndTraining() {
  checkpoints_.EndTraining();
  finished_ = true;
  Leave();
}

// Once it has trained its last step, and every server has that.
void SimWorker::Leave() {
  if (!finished_ || training_ == nullptr || is_leaving_) return;
  if (session_.acked_through() < step_) return;
  is_leaving_ = true;
  training_->Leave();
}

void SimWorker::CheckRows(const std::vector<RowsOfTable>& all, Step from, Step to) {
  for (const RowsOfTable& rows : all) {
    for (size_t i = 0; i < rows.keys.size(); ++i) {
      const size_t dim = rows.values.size() / rows.keys.size();
      const auto weights = absl::MakeConstSpan(rows.values).subspan(i * dim, dim);
      if (model_->HadWeights(rows.table, rows.keys[i], weights, from, to)) continue;
      Fail(absl::StrCat("table ", rows.table.value(), ", key ", rows.keys[i],
                        ": the row is of no step in ", from.value(), "..", to.value()));
    }
  }
}

// Gradients for most of the rows read, from the rows' own values; a few rows are written back
// whole, and a few were looked up without a gradient.
std::vector<ModelUpdate> SimWorker::MakeUpdates(const std::vector<RowsOfTable>& all) const {
  // Where rows are shared, owners update them, and no worker writes one of them itself.
  const bool all_learn = !options_.dense.empty();
  std::vector<ModelUpdate> updates;
  for (const RowsOfTable& rows : all) {
    const TableLayout& layout = model_->layout(rows.table);
    for (size_t i = 0; i < rows.keys.size(); ++i) {
      SimRandom random = DataRandom(step_, rows.table, rows.keys[i]);
      if (random.Chance(0.2) && !all_learn) continue;  // Read only.
      ModelUpdate update;
      update.table = rows.table;
      update.key = rows.keys[i];
      update.count = LookupsOf(step_, rows.table, rows.keys[i]);
      random.Next();  // The lookups'.
      const bool assign = random.Chance(0.1) && !all_learn;
      if (assign) update.kind = wire::PushKind::kAssign;
      const bool may_lack = options_.lacks_gradients && !assign && !IsDense(rows.table);
      if (may_lack && random.Chance(0.1)) {
        update.kind = wire::PushKind::kCount;
        updates.push_back(std::move(update));
        continue;
      }
      update.values.resize(assign ? layout.row_floats() : layout.dim);
      for (size_t j = 0; j < update.values.size(); ++j) {
        const float noise = static_cast<float>(random.Between(-1000, 1000)) * 1e-3f;
        const float weight = rows.values[i * layout.dim + j % layout.dim];
        // Optimizer state is not negative.
        update.values[j] = assign ? noise * noise : noise + 0.05f * weight;
      }
      updates.push_back(std::move(update));
    }
  }
  return updates;
}

void SimWorker::PushStep(const std::vector<ModelUpdate>& updates) {
  if (checkpoints_.BeginPush(step_)) named_.insert(step_);
  const float learning_rate = 0.01f * static_cast<float>(1 + step_.value());
  model_->AddPush(options_.rank, {step_, learning_rate, updates});
  ++pushes_;
  if (training_ == nullptr) return PushToServers(updates, learning_rate);
  training_->Push(updates, learning_rate, WritesBackAt(step_));
}

// The session may be at work, and must not be called.
void SimWorker::OnReleased() { Wake(); }

void SimWorker::PushToServers(const std::vector<ModelUpdate>& updates, float learning_rate) {
  const size_t num_waves = 1 + random_.Below(2);
  const auto waves =
      std::make_shared<std::vector<ServerBlocks>>(num_waves, ServerBlocks(options_.num_servers));
  for (const ModelUpdate& update : updates) (*waves)[random_.Below(num_waves)].Add(update);
  PushWork work;
  work.step = step_;
  work.learning_rate = learning_rate;
  for (const ServerBlocks& wave : *waves) work.waves.push_back(wave.PushSlices());
  ++pushes_outstanding_;
  session_.StartPush(std::move(work), [this, waves](const absl::Status& status) {
    --pushes_outstanding_;
    if (!status.ok()) Fail(status);
  });
  // The next pull begins before or after the values of this push are there.
  const bool pull_after = random_.Chance(0.5);
  Release(step_, 0, num_waves, pull_after);
  if (!pull_after) NextStep();
}

void SimWorker::Release(Step step, size_t wave, size_t num_waves, bool pull_after) {
  scheduler_.RunAfter(random_.Between(0, 3000), [=] {
    const absl::Status status = session_.ReleaseWave(step, wave);
    if (!status.ok()) return Fail(status);
    if (wave + 1 < num_waves) {
      Release(step, wave + 1, num_waves, pull_after);
    } else if (pull_after) {
      NextStep();
    }
  });
}

void SimWorker::NextStep() {
  if (EvaluatesAfter(step_) || ChangesAfter(step_)) return Evaluate();
  if (step_.value() + 1 == options_.num_steps) return EndTraining();
  Advance();
}

void SimWorker::Fail(const absl::Status& error) {
  if (*ended_) return;
  if (!IsServerLoss(error)) return Fail(error.ToString());
  *ended_ = true;
  on_lost_(this, error);
}

void SimWorker::Fail(const std::string& what) {
  failures_->push_back(absl::StrCat("rank ", options_.rank.value(), ", step ", step_.value(),
                                    ", at ", scheduler_.NowMicros(), " us: ", what));
}

}  // namespace thermocline
