#include "tests/simulation/sim_training.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/math/gradient_merge.h"
#include "worker/data/batch.h"
#include "worker/session/retry_policy.h"
#include "worker/train/run_options.h"

namespace thermocline {
namespace {

// Rows of a table that drops or limits its rows lie with the servers alone.
bool IsHeld(const ExchangeSetup& setup, const TableLayout& table) {
  return setup.shares_rows && table.role == TableRole::kSparse && table.min_count == 0 &&
         table.unused_steps == 0 && table.max_rows == 0;
}

CacheGroupLayout GroupOf(int32_t table, const TableLayout& layout, int32_t capacity) {
  CacheGroupLayout group;
  group.tables = {table};
  group.dim = layout.dim;
  group.row_floats = layout.row_floats();
  group.stride = layout.row_floats();
  group.capacity = capacity;
  return group;
}

std::vector<TableId> IdsOf(const std::vector<TableLayout>& tables) {
  std::vector<TableId> ids;
  for (const TableLayout& table : tables) ids.push_back(table.id);
  return ids;
}

// Feature f reads table f.
std::vector<int32_t> FeatureTables(size_t num_tables) {
  std::vector<int32_t> tables(num_tables);
  for (size_t t = 0; t < num_tables; ++t) tables[t] = static_cast<int32_t>(t);
  return tables;
}

// Sums gradients with the ranks in `order`.
void MergeInOrder(const std::vector<uint32_t>& order, const RequestedKeys& requested,
                  absl::Span<const absl::Span<const float>> gradients, int dim,
                  absl::Span<float> merged) {
  std::set<int32_t> seen;
  for (const uint32_t rank : order) {
    const auto& positions = requested.positions[rank];
    for (size_t i = 0; i < positions.size(); ++i) {
      MergeGradient(seen.insert(positions[i]).second, gradients[rank].data() + i * dim, dim,
                    merged.data() + positions[i] * dim);
    }
  }
}

// The cache of an only worker is its own.
SimTrainingOptions Alone(SimTrainingOptions options) {
  const bool is_alone = options.rows.num_workers == 1;
  if (is_alone && options.rows.held == HeldSet::kSharedCache) options.rows.held = HeldSet::kCache;
  return options;
}

}  // namespace

std::set<TableId> HeldTables(const ExchangeSetup& setup, const std::vector<TableLayout>& tables) {
  std::set<TableId> held;
  for (const TableLayout& table : tables) {
    if (table.role == TableRole::kDense || IsHeld(setup, table)) held.insert(table.id);
  }
  return held;
}

SimTrainingOptions TrainingOptions(const ExchangeSetup& setup,
                                   const std::vector<TableLayout>& tables,
                                   const std::vector<DenseTable>& dense) {
  SimTrainingOptions options;
  bool holds_any = false;
  for (const TableLayout& table : tables) {
    if (table.role == TableRole::kDense) continue;
    const bool is_held = IsHeld(setup, table);
    holds_any = holds_any || is_held;
    options.rows.layout.groups.push_back(GroupOf(static_cast<int32_t>(options.rows.tables.size()),
                                                 table, is_held ? setup.capacity : 0));
    options.rows.layout.groups.back().holds_rows = is_held;
    options.rows.tables.push_back(table);
  }
  options.dense = dense;
  options.exchange.phases = holds_any ? kAllPhases : kDensePhases;
  options.exchange.window_steps = setup.window_steps;
  options.exchange.max_chunk_bytes = setup.max_chunk_bytes;
  if (setup.least_credit) options.exchange.credit_steps.fill(1);
  if (holds_any) {
    options.rows.held = HeldSet::kSharedCache;
    options.rows.window_steps = setup.window_steps;
    options.rows.prefetch_steps = setup.least_credit ? 0 : setup.window_steps - 1;
  }
  options.contexts = options.rows.prefetch_steps + (setup.least_credit ? 2 : 6);
  return options;
}

SimTraining::SimTraining(const SimTrainingOptions& options, SimTrainee* trainee,
                         std::unique_ptr<ExchangeTransport> transport, PsSession* session,
                         Scheduler* scheduler, Saboteur* saboteur)
    : options_(Alone(options)),
      trainee_(*trainee),
      session_(*session),
      scheduler_(*scheduler),
      saboteur_(*saboteur),
      random_(options.seed),
      device_(saboteur),
      exchange_(transport == nullptr ? nullptr
                                     : std::make_unique<Exchange>(options.exchange, Hooks(),
                                                                  std::move(transport), scheduler)),
      model_(options.model == nullptr ? nullptr : options.model->MakeStep(&device_)),
      batch_planner_(MakeBatchPlanner()),
      row_planner_(MakeRowPlanner(options_.rows, exchange_.get(), &threads_)),
      blocks_(options.dense, ClusterMap(options.rows.num_servers)),
      slices_(exchange_ == nullptr
                  ? nullptr
                  : std::make_unique<DenseSlices>(
                        options.dense, ClusterMap(options.rows.num_servers), exchange_.get())),
      weights_(blocks_.arena_floats()),
      state_(blocks_.arena_floats() / kDenseBlockFloats * blocks_.state_floats()),
      gradients_(blocks_.arena_floats()),
      arenas_(Arenas()),
      dense_(&blocks_, arenas_, options.exchange.num_ranks, slices_.get(), &device_, session),
      rows_(RowOptions(), HoldsRows() ? exchange_.get() : nullptr, session, &device_),
      order_(&rows_, &dense_, session, exchange_.get()),
      next_step_(options.exchange.start_step),
      last_step_(next_step_ - 1) {
  for (int i = 0; i < options.contexts + std::max(1, options.rows.window_steps); ++i) {
    contexts_.push_back(std::make_unique<StepContext>());
    idle_.push_back(contexts_.back().get());
  }
}

SimTraining::~SimTraining() { *is_over_ = true; }

BatchPlanner SimTraining::MakeBatchPlanner() const {
  if (model_ != nullptr) {
    return MakePlanner(options_.model->tables, options_.rows.num_servers, model_->vector_places());
  }
  return BatchPlanner(IdsOf(options_.rows.tables), FeatureTables(options_.rows.tables.size()),
                      ClusterMap(options_.rows.num_servers));
}

DenseArenas SimTraining::Arenas() {
  if (model_ != nullptr) return model_->dense();
  const auto span = [](std::vector<float>& arena) {
    return DeviceSpan<float>{arena.data(), static_cast<int64_t>(arena.size())};
  };
  return {span(weights_), span(state_), span(gradients_)};
}

// As WorkerRun's.
ExchangeHooks SimTraining::Hooks() {
  ExchangeHooks hooks;
  hooks.on_failure = [this](const absl::Status& error) {
    // Another rank's process is of another generation; all else breaks a rule.
    absl::IsFailedPrecondition(error) ? trainee_.Fail(MarkServerLoss(error))
                                      : trainee_.Fail(error.ToString());
  };
  hooks.on_waiting = [this] { session_.ProbeAll(); };
  return hooks;
}

// With some bound on the rows that are newer than the servers', and a planted merge.
RowSourceOptions SimTraining::RowOptions() {
  RowSourceOptions rows = options_.rows;
  rows.max_unwritten_bytes = random_.Below(1 + rows.layout.capacity_bytes() * rows.num_workers);
  if (Has(PlantedFault::kOwnersArrivalOrder) || Has(PlantedFault::kOwnLast)) {
    rows.merge = [this](const RequestedKeys& requested,
                        absl::Span<const absl::Span<const float>> gradients, int dim,
                        absl::Span<float> merged) {
      MergeInOrder(PlantedOrder(), requested, gradients, dim, merged);
    };
  }
  return rows;
}

std::vector<uint32_t> SimTraining::PlantedOrder() {
  std::vector<uint32_t> ranks(options_.exchange.num_ranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  if (Has(PlantedFault::kOwnLast)) {
    const auto own = ranks.begin() + options_.exchange.rank.value();
    std::rotate(own, own + 1, ranks.end());
  } else {
    std::swap(ranks[random_.Below(ranks.size())], ranks[0]);
  }
  return ranks;
}

bool SimTraining::Check(const absl::Status& status) {
  if (status.ok()) return true;
  if (!std::exchange(has_failed_, true) && IsWell()) trainee_.Fail(status);
  return false;
}

void SimTraining::GoTo(At at) {
  at_ = at;
  Work();
}

void SimTraining::Work() {
  works_again_ = true;
  if (is_working_) return;
  is_working_ = true;
  while (std::exchange(works_again_, false)) {
    while (!has_left_ && !has_failed_ && IsWell() && WorkOnce()) {
    }
  }
  is_working_ = false;
}

bool SimTraining::WorkOnce() {
  if (!planning_.empty()) {
    if (RunTask(&planning_)) return true;
  } else if (PlanMore()) {
    return true;
  }
  return training_.empty() ? Train() : RunTask(&training_);
}

// Runs the first task, if what it waits for is there.
bool SimTraining::RunTask(StepTasks* tasks) {
  return IsOver(tasks->wait(), exchange_.get()) && Check(tasks->RunNext());
}

// A run that begins with the job knows the dense parameters.
void SimTraining::Begin() {
  dense_.Initialize(options_.job_seed);
  if (next_step_ == Step(0)) return GoTo(At::kBetweenSteps);
  dense_.Load(next_step_, /*with_state=*/true, &training_);
  Work();
}

// Planning, as StepPipeline does it
// ------------------------------------------------------------------------------------------------

bool SimTraining::PlanMore() {
  switch (std::exchange(planning_at_, Planning::kNothing)) {
    case Planning::kAdmitting:
      has_ended_ = !goes_on_;
      if (goes_on_) window_.push_back(admitted_);
      admitted_ = nullptr;
      return true;
    case Planning::kPlanning:
      window_.front()->behind.kind =
          window_.size() == 1 ? StepBehind::Kind::kEnd : StepBehind::Kind::kStep;
      ready_.push_back(std::move(window_.front()));
      window_.pop_front();
      return true;
    case Planning::kNothing:
      break;
  }
  const size_t stay = has_ended_ ? 0 : std::max(1, options_.rows.window_steps);
  if (window_.size() > stay) {
    planning_at_ = Planning::kPlanning;
    return Check(row_planner_->Plan(window_.front().get(), &planning_));
  }
  return !has_ended_ && Admit();
}

// Begins with the next step, or with the end of the data.
bool SimTraining::Admit() {
  if (idle_.empty()) return false;
  admitted_ = TakeContext();
  has_step_ = next_step_.value() < options_.num_steps;
  if (*has_step_) {
    admitted_->batch = trainee_.BatchOf(next_step_);
    batch_planner_.Plan(*admitted_->batch, &admitted_->plan);
  }
  next_step_ = next_step_ + 1;
  planning_at_ = Planning::kAdmitting;
  return Check(row_planner_->Admit(has_step_, admitted_.get(), &planning_, &goes_on_));
}

// Until it is released: a step that was pushed is acknowledged then.
SimTraining::ContextPtr SimTraining::TakeContext() {
  StepContext* const context = idle_.back();
  idle_.pop_back();
  return ContextPtr(context, [this, is_over = is_over_](StepContext* released) {
    if (*is_over) return;
    idle_.push_back(released);
    trainee_.OnReleased();
  });
}

// Training, as Trainer does it
// ------------------------------------------------------------------------------------------------

bool SimTraining::Train() {
  switch (at_) {
    case At::kLoading:
      at_ = At::kBetweenSteps;
      return true;
    case At::kBetweenSteps:
      return Receive();
    case At::kReceiving:
      return GiveRows();
    case At::kComputed:
      return StartPush();
    case At::kPushing:
      return FinishPush();
    case At::kFinishing:
      return EndStep();
    case At::kComputing:
    case At::kTrained:
    case At::kLeaving:
      return false;
  }
  return false;
}

// Begins the pulls of as many planned steps as may be under way.
void SimTraining::FetchAhead() {
  const auto most = static_cast<size_t>(1 + options_.rows.prefetch_steps);
  while (!stops_ && !ready_.empty() && fetched_.size() < most) {
    ContextPtr& context = fetched_.emplace_back(std::move(ready_.front()));
    ready_.pop_front();
    if (context->transfers == nullptr) {
      context->transfers = std::make_unique<StepTransfers>(&device_);
    }
    context->Begin(std::move(context->transfers));
    stops_ = trainee_.StopsAfter(context->step());
    order_.Fetch(context);
  }
}

bool SimTraining::Receive() {
  FetchAhead();
  if (fetched_.empty()) {
    Check(order_.CheckOwesNothing());
    return false;
  }
  context_ = std::move(fetched_.front());
  fetched_.pop_front();
  at_ = At::kReceiving;
  device_.BeginReceive();
  order_.Receive(context_.get(), &training_);
  return true;
}

bool SimTraining::GiveRows() {
  std::vector<RowsOfTable> all;
  for (size_t t = 0; t < options_.rows.tables.size(); ++t) {
    const Matrix& from = context_->tables[t].rows;
    std::map<Key, const float*> rows;
    for (size_t f = 0; f < context_->plan.features.size(); ++f) {
      const FeaturePlan& plan = context_->plan.features[f];
      if (plan.table != static_cast<int32_t>(t)) continue;
      const FeatureLookups& lookups = context_->batch->features[f];
      for (size_t i = 0; i < lookups.keys.size(); ++i) {
        rows[lookups.keys[i]] = from.row(plan.row_indices[i]);
      }
    }
    RowsOfTable& of_table = all.emplace_back();
    of_table.table = options_.rows.tables[t].id;
    for (const auto& [key, row] : rows) {
      of_table.keys.push_back(key);
      of_table.values.insert(of_table.values.end(), row, row + from.cols);
    }
  }
  const float* weights = arenas_.weights.data;
  for (const DenseTable& tensor : options_.dense) {
    RowsOfTable& of_table = all.emplace_back();
    of_table.table = tensor.layout.id;
    of_table.keys.resize(tensor.num_blocks());
    std::iota(of_table.keys.begin(), of_table.keys.end(), 0);
    const float* const end = weights + tensor.num_blocks() * kDenseBlockFloats;
    of_table.values.assign(std::exchange(weights, end), end);
  }
  at_ = At::kComputing;
  trainee_.OnRows(context_->step(), all);
  return true;
}

void SimTraining::PutGradients(const std::vector<ModelUpdate>& updates) {
  std::map<std::pair<TableId, Key>, const ModelUpdate*> by_key;
  for (const ModelUpdate& update : updates) by_key[{update.table, update.key}] = &update;
  for (size_t t = 0; t < options_.rows.tables.size(); ++t) {
    const TablePlan& plan = context_->plan.tables[t];
    TableOperands& table = context_->tables[t];
    for (int32_t u = 0; u < plan.num_unique(); ++u) {
      const ModelUpdate& update = *by_key.at({plan.id, plan.keys[u]});
      std::copy(update.values.begin(), update.values.end(), table.gradients.row(u));
      if (update.kind != wire::PushKind::kCount) continue;
      table.has_gradient.resize(plan.num_unique(), 1);
      table.has_gradient[u] = 0;
    }
  }
  auto gradients = gradients_.begin();
  for (const DenseTable& tensor : options_.dense) {
    for (Key key = 0; key < static_cast<Key>(tensor.num_blocks()); ++key) {
      const std::vector<float>& gradient = by_key.at({tensor.layout.id, key})->values;
      gradients = std::copy(gradient.begin(), gradient.end(), gradients);
    }
  }
}

bool SimTraining::ComputeGradients() {
  if (!Check(model_->Forward(context_.get())) || !Check(model_->BackwardToRows(context_.get()))) {
    return false;
  }
  model_->BackwardDense();
  return true;
}

void SimTraining::Push(const std::vector<ModelUpdate>& updates, float learning_rate,
                       bool writes_back) {
  context_->learning_rate = learning_rate;
  context_->writes_back = writes_back;
  if (model_ == nullptr) {
    PutGradients(updates);
  } else if (!ComputeGradients()) {
    return;
  }
  device_.BeginPush();
  rows_.Update(context_.get());
  dense_.Update(context_.get());
  GoTo(At::kComputed);
}

bool SimTraining::StartPush() {
  const BlockId gradients{context_->step(),
                          HoldsRows() ? Phase::kGradients : Phase::kDenseGradients};
  if (Has(PlantedFault::kWaitsFirst) && exchange_ != nullptr && !exchange_->BeginWait(gradients)) {
    return false;
  }
  at_ = At::kPushing;
  order_.Push(context_, &training_);
  return true;
}

bool SimTraining::FinishPush() {
  FetchAhead();
  at_ = At::kFinishing;
  if (!Has(PlantedFault::kPushesLate)) order_.FinishPush(context_.get(), &training_);
  return true;
}

bool SimTraining::EndStep() {
  last_step_ = context_->step();
  context_ = nullptr;
  at_ = At::kTrained;
  trainee_.OnStep(last_step_);
  return true;
}

// The end
// ------------------------------------------------------------------------------------------------

// Asks a server, since the last acknowledgements may be lost with their ranks.
void SimTraining::Leave() {
  at_ = At::kLeaving;
  has_left_ = exchange_ == nullptr;
  if (has_left_) return;
  if (Has(PlantedFault::kLeavesByReceipts)) {
    ExchangeStats stats;
    exchange_->FillStats(&stats);
    if (stats.bytes_owed() == 0) return LeaveNow();
    return scheduler_.RunAfter(1'000, [this] { Leave(); });
  }
  session_.AwaitApplied(last_step_, [this](const absl::Status& status) {
    if (!status.ok()) return trainee_.Fail(status);
    LeaveNow();
  });
}

void SimTraining::LeaveNow() {
  if (!Check(exchange_->Leave([](const Exchange::Done& done) { done(absl::OkStatus()); }))) return;
  has_left_ = true;
}

}  // namespace thermocline
