#include "tests/simulation/sim_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/periodic_checkpoint.h"
#include "proto/job.pb.h"
#include "proto/parameter_server.pb.h"
#include "worker/session/retry_policy.h"

namespace thermocline {

SimWorker::SimWorker(const SimWorkerOptions& options, const PsSessionOptions& session_options,
                     OnLost on_lost, OnScored on_scored, std::unique_ptr<Transport> transport,
                     Scheduler* scheduler, SequentialModel* model,
                     std::vector<std::string>* failures)
    : options_(options),
      cluster_(options.num_servers),
      on_lost_(std::move(on_lost)),
      on_scored_(std::move(on_scored)),
      scheduler_(scheduler, ended_, 0, 0),
      model_(model),
      failures_(failures),
      random_(options.seed),
      transport_(std::move(transport)),
      session_(session_options, transport_.get(), &scheduler_),
      checkpoints_(options.start_step),
      step_(options.start_step) {}

SimWorker::~SimWorker() {
  *ended_ = true;
  session_.Fail(absl::CancelledError("simulated: the worker died"));
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
  if (step_.value() < options_.num_steps) return PullStep();
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

// A worker's keys and gradients depend only on the job, its rank, the step and the batch: a
// repeated step is the same, also with another number of servers.
SimRandom SimWorker::DataRandom(TableId table, Key key) const {
  const uint64_t batch = stretch_.has_value() ? stretch_->BatchOf(step_) : 0;
  const uint64_t job = Mix64(options_.data_seed ^ Mix64(options_.rank.value()) ^ batch);
  return SimRandom(Mix64(job ^ static_cast<uint64_t>(step_.value())) ^
                   KeyHash(TableSalt(table), key));
}

void SimWorker::PullStep() {
  SimRandom random = DataRandom(TableId(0), 0);
  const std::shared_ptr<Blocks> rows = ChooseKeys(&random);
  PullWork work;
  work.step = step_;
  // Its own last push must be in the rows, or need not be.
  if (random_.Chance(0.5)) work.after_step = step_ - 1;
  work.slices.resize(options_.num_servers);
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    for (Block& block : (*rows)[server]) {
      work.slices[server].push_back({block.table, block.keys, absl::MakeSpan(block.values)});
    }
  }
  session_.Pull(std::move(work),
                [this, rows, after_step = work.after_step](absl::Status status, Step through) {
                  if (status.ok() && through < after_step) {
                    Fail(absl::StrCat("rows lack the push of step ", after_step.value()));
                  }
                  OnPulled(rows, status, through);
                });
  if (random_.Chance(0.2)) ReadAside();
}

void SimWorker::OnPulled(const std::shared_ptr<Blocks>& rows, const absl::Status& status,
                         Step complete_through) {
  if (!status.ok()) return Fail(status);
  max_staleness_ =
      std::max<uint64_t>(max_staleness_, std::max<int64_t>(0, step_ - 1 - complete_through));
  if (complete_through < step_ - 1 - options_.staleness_steps) {
    Fail(absl::StrCat("rows only complete through ", complete_through.value()));
  }
  // In sync mode no server can have applied this step yet.
  const Step newest = options_.staleness_steps == 0 ? step_ - 1 : model_->complete_through();
  CheckRows(*rows, complete_through, newest);
  std::vector<ModelUpdate> updates = MakeUpdates(*rows);
  if (options_.compute_us == 0) return PushStep(std::move(updates));
  scheduler_.RunAfter(random_.Between(0, options_.compute_us),
                      [this, updates = std::move(updates)] { PushStep(updates); });
}

// An evaluation read beside the training, at a step boundary.
void SimWorker::ReadAside() {
  const std::shared_ptr<Blocks> rows = ChooseKeys(&random_);
  PullWork work;
  work.kind = wire::PullKind::kRead;
  work.step = step_;
  work.slices.resize(options_.num_servers);
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    for (Block& block : (*rows)[server]) {
      work.slices[server].push_back({block.table, block.keys, absl::MakeSpan(block.values)});
    }
  }
  ++reads_outstanding_;
  session_.Pull(std::move(work), [this, rows, step = step_](absl::Status status, Step through) {
    --reads_outstanding_;
    if (!status.ok()) return Fail(status);
    if (through < step - 1) Fail(absl::StrCat("read is only complete to ", through.value()));
    CheckRows(*rows, through, model_->complete_through());
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
  auto rows = std::make_shared<Blocks>(options_.num_servers);
  for (const TableLayout& table : options_.tables) {
    for (uint64_t i = 0; i < options_.num_keys; ++i) {
      Block* block = BlockFor(rows.get(), table.id, wire::PushKind::kGradient, Mix64(i));
      block->keys.push_back(Mix64(i));
      block->values.resize(block->keys.size() * table.dim, -1.0f);
    }
  }
  PullWork work;
  work.kind = wire::PullKind::kRead;
  work.step = step_ + 1;
  work.slices.resize(options_.num_servers);
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    for (Block& block : (*rows)[server]) {
      work.slices[server].push_back({block.table, block.keys, absl::MakeSpan(block.values)});
    }
  }
  ++reads_outstanding_;
  session_.Pull(std::move(work), [this, rows](const absl::Status& status, Step) {
    --reads_outstanding_;
    if (!status.ok()) return Fail(status);
    CheckRows(*rows, step_, step_);  // Nothing of a later step is in them.
    ModelScore score;
    for (const std::vector<Block>& blocks : *rows) {
      for (const Block& block : blocks) {
        const size_t dim = block.values.size() / block.keys.size();
        for (size_t i = 0; i < block.keys.size(); ++i) {
          score.Add(block.table, block.keys[i],
                    absl::MakeConstSpan(block.values).subspan(i * dim, dim));
        }
      }
    }
    std::optional<ScheduleState> next;
    if (ChangesAfter(step_)) next = stretch_->Next(score.value());
    on_scored_(step_, score.value(), next);
  });
}

void SimWorker::Decide(Step step, bool stop, const std::optional<ScheduleState>& schedule) {
  if (step < decided_) return;
  decided_ = step;
  stop_ = stop;
  decided_schedule_ = schedule;
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
      if (decided_ != step_ || !decided_schedule_.has_value() ||
          decided_schedule_->first_step() != step_.value() + 1) {
        return Fail("the launcher decided on a change without the stretch behind it");
      }
      next = *decided_schedule_;
    }
    stretch_->GoTo(next);
    options_.on_stretch(next);
  }
  step_ = step_ + 1;
  PullStep();
}

void SimWorker::EndTraining() {
  checkpoints_.EndTraining();
  finished_ = true;
}

void SimWorker::CheckRows(const Blocks& rows, Step from, Step to) {
  for (const std::vector<Block>& blocks : rows) {
    for (const Block& block : blocks) {
      const size_t dim = block.values.size() / block.keys.size();
      for (size_t i = 0; i < block.keys.size(); ++i) {
        const auto weights = absl::MakeConstSpan(block.values).subspan(i * dim, dim);
        if (model_->HadWeights(block.table, block.keys[i], weights, from, to)) continue;
        Fail(absl::StrCat("table ", block.table.value(), ", key ", block.keys[i],
                          ": the row is of no step in ", from.value(), "..", to.value()));
      }
    }
  }
}

std::shared_ptr<SimWorker::Blocks> SimWorker::ChooseKeys(SimRandom* random) {
  auto blocks = std::make_shared<Blocks>(options_.num_servers);
  for (const TableLayout& table : options_.tables) {
    std::set<Key> keys;
    const int n = static_cast<int>(random->Below(options_.keys_per_table + 1));
    for (int i = 0; i < n; ++i) keys.insert(Mix64(random->Below(options_.num_keys)));
    for (const Key key : keys) {
      Block* block = BlockFor(blocks.get(), table.id, wire::PushKind::kGradient, key);
      block->keys.push_back(key);
      block->values.resize(block->keys.size() * table.dim, -1.0f);
    }
  }
  return blocks;
}

SimWorker::Block* SimWorker::BlockFor(Blocks* blocks, TableId table, wire::PushKind kind,
                                      Key key) const {
  const uint64_t hash = KeyHash(TableSalt(table), key);
  std::vector<Block>& of_server = (*blocks)[cluster_.ServerOfHash(hash).value()];
  for (Block& block : of_server) {
    if (block.table == table && block.kind == kind) return &block;
  }
  of_server.emplace_back();
  of_server.back().table = table;
  of_server.back().kind = kind;
  return &of_server.back();
}

// Gradients for most of the rows read, from the rows' own values; a few rows are written back
// whole.
std::vector<ModelUpdate> SimWorker::MakeUpdates(const Blocks& rows) const {
  std::vector<ModelUpdate> updates;
  for (const std::vector<Block>& blocks : rows) {
    for (const Block& block : blocks) {
      const TableLayout& layout = model_->layout(block.table);
      for (size_t i = 0; i < block.keys.size(); ++i) {
        SimRandom random = DataRandom(block.table, block.keys[i]);
        if (random.Chance(0.2)) continue;  // Read only.
        ModelUpdate& update = updates.emplace_back();
        update.table = block.table;
        update.key = block.keys[i];
        update.count = 1 + static_cast<uint32_t>(random.Below(3));
        const bool assign = random.Chance(0.1);
        if (assign) update.kind = wire::PushKind::kAssign;
        update.values.resize(assign ? layout.row_floats() : layout.dim);
        for (size_t j = 0; j < update.values.size(); ++j) {
          const float noise = static_cast<float>(random.Between(-1000, 1000)) * 1e-3f;
          const float weight = block.values[i * layout.dim + j % layout.dim];
          // Optimizer state is not negative.
          update.values[j] = assign ? noise * noise : noise + 0.05f * weight;
        }
      }
    }
  }
  return updates;
}

void SimWorker::PushStep(std::vector<ModelUpdate> updates) {
  if (checkpoints_.BeginPush(step_)) named_.insert(step_);
  ModelPush model_push;
  model_push.step = step_;
  model_push.learning_rate = 0.01f * static_cast<float>(1 + step_.value());
  const size_t num_waves = 1 + random_.Below(2);
  const auto waves = std::make_shared<std::vector<Blocks>>(num_waves, Blocks(options_.num_servers));
  for (const ModelUpdate& update : updates) {
    Blocks* blocks = &(*waves)[random_.Below(num_waves)];
    Block* block = BlockFor(blocks, update.table, update.kind, update.key);
    block->keys.push_back(update.key);
    block->counts.push_back(update.count);
    block->values.insert(block->values.end(), update.values.begin(), update.values.end());
  }
  model_push.updates = std::move(updates);

  PushWork work;
  work.step = step_;
  work.learning_rate = model_push.learning_rate;
  work.waves = SlicesOf(*waves);
  model_->AddPush(options_.rank, std::move(model_push));
  ++pushes_;
  ++pushes_outstanding_;
  session_.StartPush(std::move(work), [this, waves](absl::Status status) {
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

std::vector<std::vector<std::vector<wire::PushSlice>>> SimWorker::SlicesOf(
    const std::vector<Blocks>& waves) const {
  std::vector<std::vector<std::vector<wire::PushSlice>>> slices(waves.size());
  for (size_t wave = 0; wave < waves.size(); ++wave) {
    slices[wave].resize(options_.num_servers);
    for (uint32_t server = 0; server < options_.num_servers; ++server) {
      for (const Block& block : waves[wave][server]) {
        slices[wave][server].push_back(
            {block.table, block.kind, block.keys, block.counts, block.values});
      }
    }
  }
  return slices;
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
