#include "tests/simulation/sim_exchange.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/math/gradient_merge.h"
#include "common/math/sparse_optimizer.h"
#include "worker/session/retry_policy.h"

namespace thermocline {
namespace {

CachePlannerOptions PlannerOptions(const SimExchangeOptions& of) {
  CachePlannerOptions options;
  for (size_t t = 0; t < of.shared.size(); ++t) {
    options.groups.push_back({{static_cast<int32_t>(t)}, of.capacity});
  }
  options.window_steps = of.exchange.window_steps;
  return options;
}

std::vector<TableId> IdsOf(const std::vector<TableLayout>& tables) {
  std::vector<TableId> ids;
  for (const TableLayout& table : tables) ids.push_back(table.id);
  return ids;
}

// Rows of a table that drops or limits its rows lie with the servers alone.
bool IsShared(const ExchangeSetup& setup, const TableLayout& table) {
  return setup.shares_rows && table.role == TableRole::kSparse && table.min_count == 0 &&
         table.unused_steps == 0 && table.max_rows == 0;
}

void Append(absl::Span<const float> floats, std::vector<uint8_t>* bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(floats.data());
  bytes->insert(bytes->end(), data, data + floats.size() * sizeof(float));
}

// The next so many floats of a block; zeros where it is shorter.
std::vector<float> TakeFloats(size_t n, absl::Span<const uint8_t>* bytes) {
  std::vector<float> floats(n);
  if (n == 0 || bytes->size() < n * sizeof(float)) return floats;
  std::memcpy(floats.data(), bytes->data(), n * sizeof(float));
  bytes->remove_prefix(n * sizeof(float));
  return floats;
}

}  // namespace

std::set<TableId> HeldTables(const ExchangeSetup& setup, const std::vector<TableLayout>& tables) {
  std::set<TableId> held;
  for (const TableLayout& table : tables) {
    if (table.role == TableRole::kDense || IsShared(setup, table)) held.insert(table.id);
  }
  return held;
}

SimExchangeOptions OptionsOf(const ExchangeSetup& setup, const std::vector<TableLayout>& tables,
                             const std::vector<DenseTable>& dense) {
  SimExchangeOptions options;
  for (const TableLayout& table : tables) {
    if (table.role == TableRole::kDense) continue;
    (IsShared(setup, table) ? options.shared : options.others).push_back(table);
  }
  options.capacity = setup.capacity;
  options.dense = dense;
  options.exchange.phases = options.shared.empty() ? kDensePhases : kAllPhases;
  options.exchange.window_steps = setup.window_steps;
  options.exchange.max_chunk_bytes = setup.max_chunk_bytes;
  options.keys_ahead = setup.least_credit ? 0 : 2;
  if (setup.least_credit) options.exchange.credit_steps.fill(1);
  return options;
}

struct SimExchange::OfPush {
  struct Row {
    size_t table;
    int32_t row;
  };
  ServerBlocks first, written;
  std::vector<Row> rows;     // [written]
  std::vector<float> dense;  // [own blocks, row_floats]
};

SimExchange::SimExchange(const SimExchangeOptions& options, SimTrainee* trainee,
                         std::unique_ptr<ExchangeTransport> transport, PsSession* session,
                         Scheduler* scheduler, Saboteur* saboteur)
    : options_(options),
      num_ranks_(options.exchange.num_ranks),
      trainee_(*trainee),
      session_(*session),
      scheduler_(*scheduler),
      saboteur_(*saboteur),
      random_(options.seed),
      exchange_(options.exchange, Hooks(), std::move(transport), scheduler),
      requests_(options.exchange.rank, num_ranks_, ClusterMap(options.num_servers)),
      planner_(PlannerOptions(options), ClusterMap(options.num_servers), IdsOf(options.shared),
               &threads_),
      blocks_(options.dense, ClusterMap(options.num_servers)),
      slices_(options.dense, ClusterMap(options.num_servers), &exchange_),
      posted_(options.exchange.start_step),
      admitted_(posted_),
      planned_(posted_),
      step_(posted_),
      weights_(blocks_.arena_floats()),
      state_(blocks_.arena_floats() / kDenseBlockFloats * blocks_.state_floats()),
      dense_gradients_(blocks_.arena_floats()) {
  for (const TableLayout& table : options.shared) {
    slabs_.emplace_back(options.capacity, table.row_floats());
  }
}

// As WorkerRun's.
ExchangeHooks SimExchange::Hooks() {
  ExchangeHooks hooks;
  hooks.on_failure = [this](const absl::Status& error) {
    // Another rank's process is of another generation; all else breaks a rule.
    absl::IsFailedPrecondition(error) ? trainee_.Fail(MarkServerLoss(error))
                                      : trainee_.Fail(error.ToString());
  };
  hooks.on_waiting = [this] { session_.ProbeAll(); };
  return hooks;
}

bool SimExchange::Check(const absl::Status& status) {
  if (!status.ok() && exchange_.status().ok()) trainee_.Fail(status);
  return status.ok();
}

void SimExchange::GoTo(At at) {
  at_ = at;
  Work();
}

void SimExchange::Work() {
  works_again_ = true;
  if (is_working_) return;
  is_working_ = true;
  while (std::exchange(works_again_, false)) {
    while (!has_left_ && exchange_.status().ok() && WorkOnce()) {
    }
  }
  is_working_ = false;
}

bool SimExchange::WorkOnce() { return PostKeys() || PlanNext() || AdmitKeys() || Train(); }

void SimExchange::Post(BlockId id, std::vector<std::vector<uint8_t>> to_ranks) {
  std::vector<Block> blocks;
  for (const std::vector<uint8_t>& bytes : to_ranks) {
    blocks.push_back(MakeBlock(absl::MakeConstSpan(bytes)));
  }
  Check(exchange_.Post(id, std::move(blocks)));
}

// The weights of all, and the optimizer state of the own slice.
void SimExchange::Begin() {
  const auto weights = std::make_shared<std::vector<float>>(blocks_.arena_floats());
  const auto rows =
      std::make_shared<std::vector<float>>(slices_.own().num_blocks() * slices_.own().row_floats());
  const auto pull = [&](bool with_state, std::vector<std::vector<PullSlice>> slices) {
    PullWork work;
    work.kind = wire::PullKind::kRead;
    work.step = step_;
    work.with_state = with_state;
    work.slices = std::move(slices);
    ++pulls_;
    session_.Pull(std::move(work), [this, weights, rows](const absl::Status& status, Step) {
      if (!status.ok()) return trainee_.Fail(status);
      if (--pulls_ > 0) return;
      blocks_.UnstageWeights(*weights, absl::MakeSpan(weights_));
      slices_.own().UnstageRows(*rows, absl::MakeSpan(weights_), absl::MakeSpan(state_));
      GoTo(At::kPlans);
    });
  };
  ++pulls_;
  pull(false, blocks_.PullSlices(absl::MakeSpan(*weights)));
  --pulls_;
  pull(true, slices_.own().PullRowSlices(absl::MakeSpan(*rows)));
}

// Planning
// ------------------------------------------------------------------------------------------------

bool SimExchange::PostKeys() {
  if (!shares_rows() || posted_.value() > options_.num_steps ||
      posted_ > step_ + options_.exchange.window_steps + options_.keys_ahead) {
    return false;
  }
  const Step step = posted_;
  posted_ = posted_ + 1;
  if (step.value() == options_.num_steps) {
    return Check(exchange_.PostEnd(step, absl::OkStatus()));
  }
  OfStep& of = steps_[step];
  of.tables.resize(options_.shared.size());
  const ClusterMap owners(num_ranks_);
  for (size_t t = 0; t < of.tables.size(); ++t) {
    const TableLayout& layout = options_.shared[t];
    of.tables[t].asked.resize(num_ranks_);
    of.tables[t].lookups.resize(num_ranks_);
    for (const Key key : trainee_.KeysOf(step, layout)) {
      const size_t owner = owners.ServerOfHash(KeyHash(TableSalt(layout.id), key)).value();
      of.tables[t].asked[owner].push_back(key);
      of.tables[t].lookups[owner].push_back(trainee_.LookupsOf(step, layout.id, key));
    }
  }
  std::vector<Block> blocks;
  for (uint32_t owner = 0; owner < num_ranks_; ++owner) {
    std::vector<KeyRequest> requests;
    for (const OfTable& table : of.tables) {
      requests.push_back({table.asked[owner], table.lookups[owner]});
    }
    blocks.push_back({BlockKind::kData, std::make_shared<BlockBytes>(EncodeRequests(requests))});
  }
  return Check(exchange_.Post({step, Phase::kKeys}, std::move(blocks)));
}

bool SimExchange::AdmitKeys() {
  const BlockId id{admitted_, Phase::kKeys};
  if (!shares_rows() || end_.has_value() || admitted_ >= posted_ || !exchange_.BeginWait(id)) {
    return false;
  }
  const absl::StatusOr<bool> has_step = exchange_.HasStep(id.step);
  if (!Check(has_step.status())) return false;
  if (!*has_step) {
    end_ = admitted_;
    return true;
  }
  const absl::StatusOr<ReceivedBlocks> received = exchange_.Receive(id);
  if (!Check(received.status())) return false;
  OfStep& of = steps_[admitted_];
  std::vector<std::vector<KeyRequest>> requests(of.tables.size());
  for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
    const auto decoded = DecodeRequests(received->from(WorkerRank(rank)), of.tables.size());
    if (!Check(decoded.status())) return false;
    for (size_t t = 0; t < of.tables.size(); ++t) requests[t].push_back((*decoded)[t]);
  }
  for (size_t t = 0; t < of.tables.size(); ++t) {
    RequestedKeys& requested = of.tables[t].requested;
    if (!Check(requests_.Plan(options_.shared[t].id, requests[t], &requested))) return false;
    of.keys.push_back(SharesOf(options_.shared[t].id, requested));
  }
  if (!Check(planner_.Admit(id.step, of.keys, &of.plan))) return false;
  admitted_ = admitted_ + 1;
  return true;
}

// Says which of the keys are held, and how far the pushes of the others must be.
bool SimExchange::PlanNext() {
  const bool is_known = end_.has_value() || admitted_ > planned_ + options_.exchange.window_steps;
  if (!shares_rows() || !is_known || planned_ > step_ + 1 || planned_ == end_) return false;
  const Step step = planned_;
  planned_ = planned_ + 1;
  OfStep& of = steps_[step];
  planner_.Plan(step, of.keys, &of.plan);
  std::vector<std::vector<uint8_t>> blocks(num_ranks_);
  for (size_t t = 0; t < of.tables.size(); ++t) {
    OfTable& table = of.tables[t];
    const TableCachePlan& plan = of.plan.tables[t];
    std::vector<uint8_t> keep;
    for (const int32_t row : plan.rows) {
      keep.push_back(row < options_.capacity ? 1 : 0);
      if (keep.back() != 0) table.held_rows.push_back(row);
    }
    for (uint32_t to = 0; to < num_ranks_; ++to) {
      for (const int32_t u : table.requested.positions[to]) blocks[to].push_back(keep[u]);
    }
    RetainKeys(keep, &table.requested);
    if (!Has(PlantedFault::kEvictedEarly)) continue;
    for (const int32_t row : plan.evicted.rows) {
      const float* const floats = slabs_[t].row(row);
      table.evicted.emplace_back(floats, floats + slabs_[t].width);
    }
  }
  const int64_t through = of.plan.pushed_through.value();
  for (std::vector<uint8_t>& block : blocks) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&through);
    block.insert(block.end(), bytes, bytes + sizeof(through));
  }
  Post({step, Phase::kPlans}, std::move(blocks));
  return true;
}

// A step
// ------------------------------------------------------------------------------------------------

bool SimExchange::Train() {
  switch (at_) {
    case At::kPlans:
      return BeginStep();
    case At::kPulls:
      return SendRows();
    case At::kRows:
      return TakeRows();
    case At::kOwedWeights:
      return SettleWeights() && GiveRows();
    case At::kDenseGradients:
      return UpdateSlice();
    case At::kDenseWeights:
      return SettleWeights();
    case At::kGradients:
      return Merge();
    case At::kLoading:
    case At::kComputing:
    case At::kTrained:
    case At::kLeaving:
      return false;
  }
  return false;
}

// Pulls its rows that nobody holds, and as an owner those that come into the cache.
bool SimExchange::BeginStep() {
  if (!Check(exchange_.CheckOwesNothing())) return false;
  OfStep& of = steps_[step_];
  for (ServerBlocks* blocks : {&of.loaded, &of.bypassed, &of.latest}) {
    *blocks = ServerBlocks(options_.num_servers);
  }
  Step through = step_ - 1;
  if (shares_rows() && (planned_ <= step_ || !TakePlans(&of, &through))) return false;
  for (const TableLayout& table : options_.others) {
    for (const Key key : trainee_.KeysOf(step_, table)) of.latest.AddRead(table.id, key, table.dim);
  }
  at_ = At::kPulls;
  ++pulls_;
  Pull(&of.loaded, /*with_state=*/true, of.plan.pushed_through);
  Pull(&of.bypassed, /*with_state=*/false, through);
  Pull(&of.latest, /*with_state=*/false, step_ - 1);
  --pulls_;
  return true;
}

bool SimExchange::TakePlans(OfStep* of, Step* through) {
  const BlockId id{step_, Phase::kPlans};
  if (!exchange_.BeginWait(id)) return false;
  const absl::StatusOr<ReceivedBlocks> received = exchange_.Receive(id);
  if (!Check(received.status())) return false;
  *through = of->plan.pushed_through;
  for (uint32_t owner = 0; owner < num_ranks_; ++owner) {
    absl::Span<const uint8_t> bytes = received->from(WorkerRank(owner));
    size_t asked = 0;
    for (const OfTable& table : of->tables) asked += table.asked[owner].size();
    int64_t of_owner = 0;
    if (bytes.size() != asked + sizeof(of_owner)) {
      trainee_.Fail(absl::StrCat("rank ", owner, " sends plans of another size"));
      return false;
    }
    std::memcpy(&of_owner, bytes.data() + asked, sizeof(of_owner));
    *through = std::max(*through, Step(of_owner));
    for (size_t t = 0; t < of->tables.size(); ++t) {
      OfTable& table = of->tables[t];
      table.is_held.resize(num_ranks_);
      for (const Key key : table.asked[owner]) {
        table.is_held[owner].push_back(bytes.front() != 0);
        bytes.remove_prefix(1);
        if (table.is_held[owner].back()) continue;
        of->bypassed.AddRead(options_.shared[t].id, key, options_.shared[t].dim);
      }
    }
  }
  if (*through >= step_) trainee_.Fail("a plan names a push that is yet to come");
  for (size_t t = 0; t < of->tables.size(); ++t) {
    for (const Key key : of->plan.tables[t].loaded.keys) {
      of->loaded.AddRead(options_.shared[t].id, key, options_.shared[t].row_floats());
    }
  }
  return true;
}

void SimExchange::Pull(ServerBlocks* blocks, bool with_state, Step after) {
  PullWork work;
  work.after_step = std::max(after, options_.exchange.start_step - 1);
  work.step = work.after_step + 1;
  work.with_state = with_state;
  work.slices = blocks->PullSlices();
  ++pulls_;
  session_.Pull(std::move(work),
                [this, needed = work.after_step](const absl::Status& status, Step through) {
                  if (!status.ok()) return trainee_.Fail(status);
                  if (through < needed) {
                    trainee_.Fail(absl::StrCat("rows lack the push of step ", needed.value()));
                  }
                  --pulls_;
                  Work();
                });
}

// As an owner: brings the slabs to what the plan says, and sends each rank the rows that it asked
// for.
bool SimExchange::SendRows() {
  if (pulls_ > 0) return false;
  at_ = At::kRows;
  if (!shares_rows()) return true;
  OfStep& of = steps_[step_];
  push_ = std::make_shared<OfPush>();
  push_->first = push_->written = ServerBlocks(options_.num_servers);
  std::map<TableKey, std::vector<float>> loaded;
  for (const RowsOfTable& rows : of.loaded.rows()) {
    const size_t width = rows.values.size() / rows.keys.size();
    for (size_t i = 0; i < rows.keys.size(); ++i) {
      const auto row = rows.values.begin() + static_cast<int64_t>(i * width);
      loaded[{rows.table, rows.keys[i]}].assign(row, row + static_cast<int64_t>(width));
    }
  }
  std::vector<std::vector<uint8_t>> blocks(num_ranks_);
  for (size_t t = 0; t < of.tables.size(); ++t) {
    const TableLayout& layout = options_.shared[t];
    const TableCachePlan& plan = of.plan.tables[t];
    Slab& slab = slabs_[t];
    for (int32_t i = 0; i < plan.evicted.size(); ++i) {
      const int32_t row = plan.evicted.rows[i];
      const uint32_t lookups = slab.held.TakeUnwritten(row);
      if (lookups == 0) continue;
      const bool early = Has(PlantedFault::kEvictedEarly);
      push_->first.Add({layout.id, wire::PushKind::kAssign, plan.evicted.keys[i], lookups,
                        early ? of.tables[t].evicted[i]
                              : std::vector<float>(slab.row(row), slab.row(row) + slab.width)});
    }
    for (int32_t i = 0; i < plan.loaded.size(); ++i) {
      const std::vector<float>& row = loaded.at({layout.id, plan.loaded.keys[i]});
      const size_t at = size_t{1} * plan.loaded.rows[i] * slab.width;
      std::copy(row.begin(), row.end(), slab.rows.begin() + static_cast<int64_t>(at));
      if (!slab.before.empty()) {
        std::copy(row.begin(), row.end(), slab.before.begin() + static_cast<int64_t>(at));
      }
      slab.held.Hold(plan.loaded.rows[i], static_cast<int32_t>(t), plan.loaded.keys[i]);
    }
    const bool stale = Has(PlantedFault::kStaleHeldRows) && !slab.before.empty();
    for (uint32_t to = 0; to < num_ranks_; ++to) {
      for (const int32_t u : of.tables[t].requested.positions[to]) {
        const size_t at = size_t{1} * of.tables[t].held_rows[u] * slab.width;
        Append({(stale ? slab.before : slab.rows).data() + at, static_cast<size_t>(layout.dim)},
               &blocks[to]);
      }
    }
  }
  Post({step_, Phase::kRows}, std::move(blocks));
  return true;
}

bool SimExchange::TakeRows() {
  OfStep& of = steps_[step_];
  const BlockId id{step_, Phase::kRows};
  if (shares_rows()) {
    if (!exchange_.BeginWait(id)) return false;
    const absl::StatusOr<ReceivedBlocks> received = exchange_.Receive(id);
    if (!Check(received.status())) return false;
    for (uint32_t owner = 0; owner < num_ranks_; ++owner) {
      absl::Span<const uint8_t> bytes = received->from(WorkerRank(owner));
      for (size_t t = 0; t < of.tables.size(); ++t) {
        const OfTable& table = of.tables[t];
        for (size_t i = 0; i < table.asked[owner].size(); ++i) {
          if (!table.is_held[owner][i]) continue;
          of.rows[{options_.shared[t].id, table.asked[owner][i]}] =
              TakeFloats(options_.shared[t].dim, &bytes);
        }
      }
      if (!bytes.empty()) trainee_.Fail(absl::StrCat("rank ", owner, " sends too many rows"));
    }
  } else {
    push_ = std::make_shared<OfPush>();
    push_->first = push_->written = ServerBlocks(options_.num_servers);
  }
  at_ = At::kOwedWeights;
  return true;
}

bool SimExchange::GiveRows() {
  OfStep& of = steps_[step_];
  std::vector<RowsOfTable> all = of.latest.rows();
  for (RowsOfTable& rows : of.bypassed.rows()) all.push_back(std::move(rows));
  for (const auto& [key, row] : of.rows) all.push_back({key.first, {key.second}, row});
  size_t next = 0;
  for (const DenseTable& tensor : options_.dense) {
    RowsOfTable& rows = all.emplace_back();
    rows.table = tensor.layout.id;
    for (Key key = 0; key < static_cast<Key>(tensor.num_blocks()); ++key) rows.keys.push_back(key);
    const auto begin = weights_.begin() + static_cast<int64_t>(next);
    next += rows.keys.size() * kDenseBlockFloats;
    rows.values.assign(begin, weights_.begin() + static_cast<int64_t>(next));
  }
  at_ = At::kComputing;
  trainee_.OnRows(step_, all);
  return true;
}

void SimExchange::Push(const std::vector<ModelUpdate>& updates, float learning_rate,
                       bool writes_back) {
  OfStep& of = steps_[step_];
  of.learning_rate = learning_rate;
  of.writes_back = writes_back;
  for (const ModelUpdate& update : updates)
    of.gradients[{update.table, update.key}] = update.values;
  std::set<TableKey> held;
  for (size_t t = 0; t < of.tables.size(); ++t) {
    for (uint32_t owner = 0; owner < num_ranks_; ++owner) {
      for (size_t i = 0; i < of.tables[t].asked[owner].size(); ++i) {
        if (!of.tables[t].is_held[owner][i]) continue;
        held.emplace(options_.shared[t].id, of.tables[t].asked[owner][i]);
      }
    }
  }
  size_t first_block = 0;
  std::map<TableId, size_t> first_blocks;
  for (const DenseTable& tensor : options_.dense) {
    first_blocks[tensor.layout.id] = first_block;
    first_block += tensor.num_blocks();
  }
  for (const ModelUpdate& update : updates) {
    const auto dense = first_blocks.find(update.table);
    if (dense != first_blocks.end()) {
      std::copy(update.values.begin(), update.values.end(),
                &dense_gradients_[(dense->second + update.key) * kDenseBlockFloats]);
    } else if (held.count({update.table, update.key}) == 0) {
      push_->first.Add(update);
    }
  }
  if (!Has(PlantedFault::kWaitsFirst)) PostGradients();
  ChooseWrittenRows(of);
  PushWork work;
  work.step = step_;
  work.learning_rate = learning_rate;
  work.waves = {push_->first.PushSlices(), push_->written.PushSlices()};
  if (writes_back) {
    push_->dense.resize(slices_.own().num_blocks() * slices_.own().row_floats());
    work.waves.push_back(slices_.own().AssignSlices(push_->dense));
  }
  session_.StartPush(std::move(work), [this, kept = push_](const absl::Status& status) {
    trainee_.OnAcknowledged(status);
  });
  if (!Check(session_.ReleaseWave(step_, 0))) return;
  const bool ends_data = step_.value() + 1 == options_.num_steps;
  if (!Check(slices_.PostGradients(step_, ends_data, dense_gradients_))) return;
  GoTo(At::kDenseGradients);
}

// Sends the owners the gradients of the rows that they hold.
void SimExchange::PostGradients() {
  if (!shares_rows()) return;
  const OfStep& of = steps_[step_];
  std::vector<std::vector<uint8_t>> blocks(num_ranks_);
  for (uint32_t owner = 0; owner < num_ranks_; ++owner) {
    for (size_t t = 0; t < of.tables.size(); ++t) {
      const OfTable& table = of.tables[t];
      for (size_t i = 0; i < table.asked[owner].size(); ++i) {
        if (!table.is_held[owner][i]) continue;
        Append(of.gradients.at({options_.shared[t].id, table.asked[owner][i]}), &blocks[owner]);
      }
    }
  }
  Post({step_, Phase::kGradients}, std::move(blocks));
}

// As an owner: rows that are newer than the servers' once the step is trained. All of them where it
// writes back, else some.
void SimExchange::ChooseWrittenRows(const OfStep& of) {
  for (size_t t = 0; t < of.tables.size(); ++t) {
    const OfTable& table = of.tables[t];
    HeldRows& held = slabs_[t].held;
    for (size_t u = 0; u < table.held_rows.size(); ++u) {
      held.AddUpdate(table.held_rows[u], table.requested.counts[u]);
    }
    const uint64_t most = of.writes_back ? UINT64_MAX : random_.Below(3);
    for (uint64_t i = 0; i < most && held.num_unwritten() > 0; ++i) {
      const HeldRows::Unwritten row = held.TakeOldest();
      push_->rows.push_back({t, row.row});
      push_->written.Add({options_.shared[t].id, wire::PushKind::kAssign, held.key(row.row),
                          row.lookups, std::vector<float>(slabs_[t].width)});
    }
  }
}

void SimExchange::FillWrittenRows() {
  std::map<std::vector<float>*, int64_t> filled;
  for (const OfPush::Row& row : push_->rows) {
    Slab& slab = slabs_[row.table];
    std::vector<float>& values =
        push_->written
            .Find(options_.shared[row.table].id, wire::PushKind::kAssign, slab.held.key(row.row))
            ->values;
    int64_t& at = filled[&values];
    std::copy_n(slab.row(row.row), slab.width, values.begin() + at);
    at += slab.width;
  }
}

bool SimExchange::UpdateSlice() {
  if (!exchange_.BeginWait({step_, Phase::kDenseGradients})) return false;
  const OfStep& of = steps_[step_];
  const UpdateScalars scalars =
      ScalarsForStep(options_.dense[0].layout.optimizer, of.learning_rate, step_);
  if (!Check(slices_.UpdateOwn(step_, scalars, dense_gradients_, absl::MakeSpan(weights_),
                               absl::MakeSpan(state_)))) {
    return false;
  }
  owed_weights_ = step_;
  at_ = of.writes_back ? At::kDenseWeights : At::kGradients;
  return true;
}

// A server applies the push of a step that writes back when every rank has what it needs of it: so
// a rank may leave then.
bool SimExchange::SettleWeights() {
  if (owed_weights_.has_value()) {
    if (!exchange_.BeginWait({*owed_weights_, Phase::kDenseWeights})) return false;
    if (!Check(slices_.ReceiveWeights(*owed_weights_, absl::MakeSpan(weights_)))) return false;
    owed_weights_.reset();
  }
  if (at_ != At::kDenseWeights) return true;
  slices_.own().StageRows(weights_, state_, absl::MakeSpan(push_->dense));
  at_ = At::kGradients;
  return Check(session_.ReleaseWave(step_, PsSession::kLastWave));
}

// As an owner: one update of each row held, with the sum of the ranks' gradients.
bool SimExchange::Merge() {
  const BlockId id{step_, Phase::kGradients};
  if (shares_rows()) {
    if (!exchange_.BeginWait(id)) return false;
    const absl::StatusOr<ReceivedBlocks> received = exchange_.Receive(id);
    if (!Check(received.status())) return false;
    const OfStep& of = steps_[step_];
    std::vector<absl::Span<const uint8_t>> left;
    for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
      left.push_back(received->from(WorkerRank(rank)));
    }
    for (size_t t = 0; t < of.tables.size(); ++t) {
      const TableLayout& layout = options_.shared[t];
      const RequestedKeys& requested = of.tables[t].requested;
      std::vector<std::vector<float>> gradients;
      for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
        gradients.push_back(TakeFloats(requested.positions[rank].size() * layout.dim, &left[rank]));
      }
      const std::vector<float> merged =
          MergeTable(requested, layout.dim, {gradients.begin(), gradients.end()});
      const UpdateScalars scalars = ScalarsForStep(layout.optimizer, of.learning_rate, step_);
      Slab& slab = slabs_[t];
      slab.before = slab.rows;
      for (size_t u = 0; u < of.tables[t].held_rows.size(); ++u) {
        float* const row = slab.row(of.tables[t].held_rows[u]);
        SelectRowUpdate(layout.optimizer.kind)(scalars, &merged[u * layout.dim], row,
                                               row + layout.dim, layout.dim);
      }
    }
    for (uint32_t rank = 0; rank < num_ranks_; ++rank) {
      if (!left[rank].empty()) trainee_.Fail(absl::StrCat("rank ", rank, ": too many gradients"));
    }
  }
  FinishPush();
  return true;
}

std::vector<float> SimExchange::MergeTable(const RequestedKeys& requested, int dim,
                                           const std::vector<absl::Span<const float>>& gradients) {
  std::vector<float> merged(requested.keys.size() * dim);
  if (!Has(PlantedFault::kOwnersArrivalOrder) && !Has(PlantedFault::kOwnLast)) {
    MergeRequested(requested, gradients, dim, absl::MakeSpan(merged));
    return merged;
  }
  std::vector<uint32_t> order;
  for (uint32_t rank = 0; rank < num_ranks_; ++rank) order.push_back(rank);
  if (Has(PlantedFault::kOwnLast)) {
    const auto own = order.begin() + options_.exchange.rank.value();
    std::rotate(own, own + 1, order.end());
  } else {
    std::swap(order[random_.Below(order.size())], order[0]);
  }
  std::set<int32_t> seen;
  for (const uint32_t rank : order) {
    const auto& positions = requested.positions[rank];
    for (size_t i = 0; i < positions.size(); ++i) {
      MergeGradient(seen.insert(positions[i]).second, gradients[rank].data() + i * dim, dim,
                    merged.data() + positions[i] * dim);
    }
  }
  return merged;
}

void SimExchange::FinishPush() {
  const Step step = step_;
  FillWrittenRows();
  if (!Has(PlantedFault::kPushesLate)) {
    if (!Check(session_.ReleaseWave(step, 1))) return;
    exchange_.NotePushed(step);
  }
  steps_.erase(step);
  step_ = step_ + 1;
  at_ = At::kTrained;
  trainee_.OnStep(step);
}

// The end
// ------------------------------------------------------------------------------------------------

// Asks a server, since the last acknowledgements may be lost with their ranks.
void SimExchange::Leave() {
  at_ = At::kLeaving;
  if (Has(PlantedFault::kLeavesByReceipts)) {
    ExchangeStats stats;
    exchange_.FillStats(&stats);
    if (stats.bytes_owed() == 0) return LeaveNow();
    return scheduler_.RunAfter(1'000, [this] { Leave(); });
  }
  session_.AwaitApplied(step_ - 1, [this](const absl::Status& status) {
    if (!status.ok()) return trainee_.Fail(status);
    LeaveNow();
  });
}

void SimExchange::LeaveNow() {
  if (!Check(exchange_.Leave([](const Exchange::Done& done) { done(absl::OkStatus()); }))) return;
  has_left_ = true;
}

}  // namespace thermocline
