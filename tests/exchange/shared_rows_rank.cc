#include "tests/exchange/shared_rows_rank.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/exchange/shared_rows.h"

namespace thermocline::shared_rows {

// Rank
// ------------------------------------------------------------------------------------------------

namespace {

CachePlannerOptions PlannerOptions(const Case& of) {
  CachePlannerOptions options;
  options.groups.push_back({{0}, of.capacity});
  options.window_steps = of.window_steps;
  return options;
}

}  // namespace

ExchangeOptions Rank::Options(int64_t first_step) const {
  ExchangeOptions options;
  options.rank = WorkerRank(rank_);
  options.num_ranks = case_.num_ranks;
  options.start_step = Step(first_step);
  options.window_steps = case_.window_steps;
  options.max_chunk_bytes = 64;
  if (case_.is_smallest) options.credit_steps.fill(1);
  return options;
}

Rank::Rank(Job* job, uint32_t rank, uint64_t generation, int64_t first_step)
    : job_(*job),
      case_(job->of()),
      rank_(rank),
      generation_(generation),
      machine_(Options(first_step), job->scheduler().NowMicros()),
      requests_(WorkerRank(rank), case_.num_ranks, ClusterMap(1)),
      planner_(PlannerOptions(case_), ClusterMap(1), {kTable}, &threads_),
      posted_(first_step),
      admitted_(first_step),
      planned_(first_step),
      step_(first_step),
      first_step_(first_step),
      slab_(case_.capacity) {}

bool Rank::Has(Planted planted) const { return case_.planted == planted; }
void Rank::Wrong(const std::string& what) {
  job_.Wrong(absl::StrCat("rank ", rank_, ", step ", step_, ": ", what));
}
bool Rank::is_paused() const { return job_.scheduler().NowMicros() < paused_until_us_; }
void Rank::Pause(int64_t for_us) {
  paused_until_us_ = job_.scheduler().NowMicros() + for_us;
  Deliver([this] { Work(); });
}
void Rank::Deliver(std::function<void()> then) {
  if (!is_paused() && paused_.empty()) return then();
  paused_.push_back(std::move(then));
  if (paused_.size() == 1) Resume();
}
void Rank::Resume() {
  if (is_paused()) {
    const int64_t left_us = paused_until_us_ - job_.scheduler().NowMicros();
    return job_.scheduler().RunAfter(left_us, [this, alive = alive_] {
      if (*alive) Resume();
    });
  }
  for (const std::function<void()>& then : std::exchange(paused_, {})) then();
}

void Rank::Work() {
  if (has_left_ || is_paused()) return;
  while (machine_.failure().ok() && !has_left_ && WorkOnce()) {
  }
  if (!machine_.failure().ok()) return Wrong(machine_.failure().ToString());
  if (has_left_) return;
  CarryOut();
  ScheduleTick();
  if (at_ == At::kLeaving && machine_.MayLeave()) Leave();
}

bool Rank::WorkOnce() { return PostKeys() || PlanNext() || AdmitKeys() || Train(); }

void Rank::Post(BlockId id, std::vector<std::vector<uint8_t>> to_ranks) {
  std::vector<Block> blocks;
  for (const std::vector<uint8_t>& bytes : to_ranks) {
    blocks.push_back({BlockKind::kData, std::make_shared<BlockBytes>(bytes.begin(), bytes.end())});
  }
  const absl::Status posted = machine_.Post(id, std::move(blocks));
  if (!posted.ok()) Wrong(posted.ToString());
}

bool Rank::PostKeys() {
  if (posted_ > case_.num_steps ||
      posted_ > step_ + case_.window_steps + (case_.is_smallest ? 0 : 2)) {
    return false;
  }
  const BlockId id{Step(posted_), Phase::kKeys};
  std::vector<Block> blocks;
  OfStep& of = steps_[posted_];
  of.asked.resize(case_.num_ranks);
  of.lookups.resize(case_.num_ranks);
  if (posted_ < case_.num_steps) {
    for (const Key key : KeysOf(case_, rank_, posted_)) {
      const uint64_t hash = KeyHash(TableSalt(kTable), key);
      of.asked[ClusterMap(case_.num_ranks).ServerOfHash(hash).value()].push_back(key);
    }
  }
  for (uint32_t owner = 0; owner < case_.num_ranks; ++owner) {
    of.lookups[owner].assign(of.asked[owner].size(), 1);
    const KeyRequest request = {of.asked[owner], of.lookups[owner]};
    const bool is_end = posted_ == case_.num_steps;
    blocks.push_back(
        {is_end ? BlockKind::kEnd : BlockKind::kData,
         std::make_shared<BlockBytes>(is_end ? BlockBytes() : EncodeRequests({&request, 1}))});
  }
  const absl::Status posted = machine_.Post(id, std::move(blocks));
  if (!posted.ok()) Wrong(posted.ToString());
  ++posted_;
  return true;
}

bool Rank::AdmitKeys() {
  if (last_.has_value() || admitted_ >= posted_) return false;
  const BlockId id{Step(admitted_), Phase::kKeys};
  if (!machine_.Await(job_.scheduler().NowMicros(), id)) return false;
  const absl::StatusOr<bool> has_step = machine_.HasStep(id.step);
  if (!has_step.ok()) Wrong(has_step.status().ToString());
  if (!has_step.ok() || !*has_step) {
    last_ = admitted_;
    return true;
  }
  OfStep& of = steps_[admitted_];
  std::vector<KeyRequest> requests;
  for (const Block* block : machine_.BlocksOf(id)) {
    const auto decoded = DecodeRequests(*block->bytes, 1);
    if (!decoded.ok()) return Wrong(decoded.status().ToString()), false;
    requests.push_back((*decoded)[0]);
  }
  const absl::Status planned = requests_.Plan(kTable, requests, &of.requested);
  if (!planned.ok()) return Wrong(planned.ToString()), false;
  machine_.Release(id);
  of.keys = {SharesOf(kTable, of.requested)};
  planner_.Admit(id.step, of.keys, &of.plan);
  ++admitted_;
  return true;
}

// Says which of the keys are held, and how far the pushes of the others must be.
bool Rank::PlanNext() {
  const bool is_known = last_.has_value() || admitted_ > planned_ + case_.window_steps;
  if (!is_known || planned_ > step_ + 1 || (last_.has_value() && planned_ >= *last_)) return false;
  OfStep& of = steps_[planned_];
  planner_.Plan(Step(planned_), of.keys, &of.plan);
  if (Has(Planted::kEvictedEarly)) {
    for (const int32_t row : of.plan.tables[0].evicted.rows) {
      evicted_early_[planned_].push_back(slab_[row]);
    }
  }
  std::vector<std::vector<uint8_t>> blocks(case_.num_ranks);
  const int64_t through = of.plan.pushed_through.value();
  for (uint32_t to = 0; to < case_.num_ranks; ++to) {
    for (const int32_t u : of.requested.positions[to]) {
      blocks[to].push_back(of.plan.tables[0].rows[u] < case_.capacity ? 1 : 0);
    }
    const auto* bytes = reinterpret_cast<const uint8_t*>(&through);
    blocks[to].insert(blocks[to].end(), bytes, bytes + sizeof(through));
  }
  Post({Step(planned_), Phase::kPlans}, std::move(blocks));
  ++planned_;
  return true;
}

bool Rank::Await(Phase phase) {
  return machine_.Await(job_.scheduler().NowMicros(), {Step(step_), phase});
}

bool Rank::Train() {
  if (at_ == At::kPlans && last_.has_value() && step_ >= *last_) {
    at_ = At::kTrained;
  }
  switch (at_) {
    case At::kPlans:
      return BeginStep();
    case At::kPulls:
      return SendRows();
    case At::kRows:
      return UseRows();
    case At::kGradients:
      return Merge();
    case At::kDenseGradients:
      if (!UseDense(Phase::kDenseGradients)) return false;
      PostDense(Phase::kDenseWeights);
      at_ = At::kDenseWeights;
      return true;
    case At::kDenseWeights:
      if (!UseDense(Phase::kDenseWeights)) return false;
      at_ = At::kPushed;
      return true;
    case At::kPushed:  // The push of a step is whole once all of the step is here.
      if (!Has(Planted::kPushesLate)) PushStep();
      steps_.erase(step_++);
      at_ = At::kPlans;
      return true;
    case At::kTrained:
      at_ = At::kLeaving;
      if (Has(Planted::kLeavesByReceipts)) return true;
      job_.servers().When(step_ - 1, [this, alive = alive_] {
        if (!*alive) return;
        Deliver([this] {
          machine_.Finish();
          Work();
        });
      });
      return true;
    case At::kLeaving:
      return false;
  }
  return false;
}

// Pulls its rows that nobody holds, and as an owner those that come into the cache.
bool Rank::BeginStep() {
  machine_.CheckOwesNothing();
  if (planned_ <= step_ || !Await(Phase::kPlans)) return false;
  OfStep& of = steps_[step_];
  of.is_held.resize(case_.num_ranks);
  int64_t through = std::max(of.plan.pushed_through.value(), first_step_ - 1);
  const BlockId id{Step(step_), Phase::kPlans};
  const std::vector<const Block*> blocks = machine_.BlocksOf(id);
  for (uint32_t owner = 0; owner < case_.num_ranks; ++owner) {
    const BlockBytes& bytes = *blocks[owner]->bytes;
    const size_t n = of.asked[owner].size();
    if (bytes.size() != n + sizeof(int64_t)) return Wrong("plans of another size"), false;
    int64_t of_owner = 0;
    std::memcpy(&of_owner, bytes.data() + n, sizeof(of_owner));
    through = std::max(through, of_owner);
    for (size_t i = 0; i < n; ++i) of.is_held[owner].push_back(bytes[i] != 0);
  }
  machine_.Release(id);
  if (through >= step_) return Wrong("a plan names a push that is yet to come"), false;
  of.pulls = 1;
  job_.servers().When(through, [this, alive = alive_, step = step_] {
    if (!*alive) return;
    Deliver([this, step] {
      OfStep& pulling = steps_[step];
      const auto pull = [&](Key key) { pulling.pulled[key] = job_.servers().Read(key); };
      for (const Key key : pulling.plan.tables[0].loaded.keys) pull(key);
      for (uint32_t owner = 0; owner < case_.num_ranks; ++owner) {
        for (size_t i = 0; i < pulling.asked[owner].size(); ++i) {
          if (!pulling.is_held[owner][i]) pull(pulling.asked[owner][i]);
        }
      }
      pulling.pulls = 0;
      Work();
    });
  });
  at_ = At::kPulls;
  return true;
}

namespace {

void Append(const Row& row, std::vector<uint8_t>* bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(row.data());
  bytes->insert(bytes->end(), data, data + sizeof(Row));
}
Row RowAt(const BlockBytes& bytes, size_t i) {
  Row row{};
  if ((i + 1) * sizeof(Row) <= bytes.size()) {
    std::memcpy(row.data(), bytes.data() + i * sizeof(Row), sizeof(Row));
  }
  return row;
}

}  // namespace

bool Rank::SendRows() {
  OfStep& of = steps_[step_];
  if (of.pulls > 0) return false;
  const TableCachePlan& plan = of.plan.tables[0];
  for (int32_t i = 0; i < plan.evicted.size(); ++i) {
    const int32_t row = plan.evicted.rows[i];
    const bool early = Has(Planted::kEvictedEarly);
    of.push.assigned.push_back(
        {plan.evicted.keys[i], early ? evicted_early_[step_][i] : slab_[row]});
    held_.erase(row);
  }
  for (int32_t i = 0; i < plan.loaded.size(); ++i) {
    slab_[plan.loaded.rows[i]] = of.pulled.at(plan.loaded.keys[i]);
    held_[plan.loaded.rows[i]] = plan.loaded.keys[i];
    if (!slab_before_.empty()) slab_before_[plan.loaded.rows[i]] = slab_[plan.loaded.rows[i]];
  }
  const bool stale = Has(Planted::kStaleRow) && !slab_before_.empty();
  std::vector<std::vector<uint8_t>> blocks(case_.num_ranks);
  for (uint32_t to = 0; to < case_.num_ranks; ++to) {
    for (const int32_t u : of.requested.positions[to]) {
      const int32_t row = plan.rows[u];
      if (row < case_.capacity) Append(stale ? slab_before_[row] : slab_[row], &blocks[to]);
    }
  }
  Post({Step(step_), Phase::kRows}, std::move(blocks));
  at_ = At::kRows;
  return true;
}

bool Rank::UseRows() {
  if (!Await(Phase::kRows)) return false;
  OfStep& of = steps_[step_];
  const BlockId id{Step(step_), Phase::kRows};
  const std::vector<const Block*> blocks = machine_.BlocksOf(id);
  for (uint32_t owner = 0; owner < case_.num_ranks; ++owner) {
    size_t next = 0;
    for (size_t i = 0; i < of.asked[owner].size(); ++i) {
      const Key key = of.asked[owner][i];
      const Row row = of.is_held[owner][i] ? RowAt(*blocks[owner]->bytes, next++) : of.pulled[key];
      if (row != job_.model().After(key, step_ - 1))
        Wrong(absl::StrCat("key ", key, ": a wrong row"));
      of.gradients[key] = GradientOf(case_, row, key, rank_, step_);
      if (!of.is_held[owner][i]) of.push.gradients.push_back({key, of.gradients[key]});
    }
    if (blocks[owner]->bytes->size() != next * sizeof(Row)) Wrong("rows of another size");
  }
  machine_.Release(id);
  gradients_sent_ = false;
  if (!Has(Planted::kWaitsBeforeItSent)) PostGradients();
  at_ = At::kGradients;
  return true;
}

void Rank::PostGradients() {
  OfStep& of = steps_[step_];
  std::vector<std::vector<uint8_t>> blocks(case_.num_ranks);
  for (uint32_t owner = 0; owner < case_.num_ranks; ++owner) {
    for (size_t i = 0; i < of.asked[owner].size(); ++i) {
      if (of.is_held[owner][i]) Append(of.gradients[of.asked[owner][i]], &blocks[owner]);
    }
  }
  Post({Step(step_), Phase::kGradients}, std::move(blocks));
  PostDense(Phase::kDenseGradients);
  gradients_sent_ = true;
}

bool Rank::Merge() {
  if (!Await(Phase::kGradients)) return false;
  if (!gradients_sent_) PostGradients();
  OfStep& of = steps_[step_];
  const BlockId id{Step(step_), Phase::kGradients};
  const std::vector<const Block*> blocks = machine_.BlocksOf(id);
  const TableCachePlan& plan = of.plan.tables[0];
  std::vector<std::vector<float>> gradients(case_.num_ranks);  // Of all keys; zeros are not used.
  std::vector<absl::Span<const float>> spans;
  for (uint32_t from = 0; from < case_.num_ranks; ++from) {
    size_t next = 0;
    for (const int32_t u : of.requested.positions[from]) {
      const Row gradient =
          plan.rows[u] < case_.capacity ? RowAt(*blocks[from]->bytes, next++) : Row{};
      gradients[from].insert(gradients[from].end(), gradient.begin(), gradient.end());
    }
    spans.push_back(gradients[from]);
  }
  machine_.Release(id);
  std::vector<float> merged(of.requested.keys.size() * kDim);
  if (Has(Planted::kArrivalOrder) || Has(Planted::kOwnLast)) {
    std::vector<uint32_t> order;
    for (uint32_t rank = 0; rank < case_.num_ranks; ++rank) order.push_back(rank);
    if (Has(Planted::kOwnLast)) {
      std::rotate(order.begin() + rank_, order.begin() + rank_ + 1, order.end());
    } else {
      std::swap(order[job_.random().Below(order.size())], order[0]);
    }
    std::set<int32_t> seen;
    for (const uint32_t rank : order) {
      const auto& positions = of.requested.positions[rank];
      for (size_t i = 0; i < positions.size(); ++i) {
        MergeGradient(seen.insert(positions[i]).second, spans[rank].data() + i * kDim, kDim,
                      merged.data() + positions[i] * kDim);
      }
    }
  } else {
    MergeRequested(of.requested, spans, kDim, absl::MakeSpan(merged));
  }
  slab_before_ = slab_;
  for (int32_t u = 0; u < of.requested.num_unique(); ++u) {
    if (plan.rows[u] >= case_.capacity) continue;
    Update({merged[u * kDim], merged[u * kDim + 1]}, &slab_[plan.rows[u]]);
  }
  at_ = At::kDenseGradients;
  return true;
}

void Rank::PushStep() {
  OfStep& of = steps_[step_];
  const bool is_last = step_ + 1 == case_.num_steps;
  if ((step_ + 1) % case_.write_back_every == 0 || is_last) {
    for (const auto& [row, key] : held_) of.push.assigned.push_back({key, slab_[row]});
  }
  job_.servers().TakePush(rank_, step_, std::move(of.push));
  machine_.NotePushed(Step(step_));
}

// Bytes that say what they are, and when.
std::vector<uint8_t> DenseBytes(const Case& of, uint64_t generation, BlockId id, uint32_t from,
                                uint32_t to) {
  uint64_t state = Mix64(of.seed ^ Mix64(generation * 64 + static_cast<uint64_t>(id.phase)) ^
                         Mix64(static_cast<uint64_t>(id.step.value()) * 10'000 + from * 100 + to));
  std::vector<uint8_t> bytes(80);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(state = Mix64(state));
  return bytes;
}
void Rank::PostDense(Phase phase) {
  const BlockId id{Step(step_), phase};
  std::vector<std::vector<uint8_t>> blocks;
  for (uint32_t to = 0; to < case_.num_ranks; ++to) {
    blocks.push_back(DenseBytes(case_, generation_, id, rank_, to));
  }
  Post(id, std::move(blocks));
}
bool Rank::UseDense(Phase phase) {
  if (!Await(phase)) return false;
  const BlockId id{Step(step_), phase};
  const std::vector<const Block*> blocks = machine_.BlocksOf(id);
  for (uint32_t from = 0; from < case_.num_ranks; ++from) {
    const std::vector<uint8_t> expected = DenseBytes(case_, generation_, id, from, rank_);
    if (*blocks[from]->bytes != BlockBytes(expected.begin(), expected.end())) {
      Wrong(absl::StrCat("wrong bytes of rank ", from));
    }
  }
  machine_.Release(id);
  return true;
}

void Rank::Leave() {
  has_left_ = true;
  job_.BreakStreamsOf(this);
}

void Rank::CarryOut() {
  for (const ExchangeAction& action : machine_.TakeActions()) {
    if (const auto* open = std::get_if<exchange_action::OpenStream>(&action)) {
      job_.Carry(this, *open);
    } else if (const auto* chunk = std::get_if<exchange_action::SendChunk>(&action)) {
      job_.Carry(this, *chunk);
    } else if (const auto* receipt = std::get_if<exchange_action::SendReceipt>(&action)) {
      exchange_action::SendReceipt sent = *receipt;
      if (Has(Planted::kSharedCredit)) LimitCredit(&sent);
      job_.Carry(this, sent);
    }
  }
}

// New room only while nothing of the sender is held, whatever the phase.
void Rank::LimitCredit(exchange_action::SendReceipt* receipt) {
  auto [granted, is_first] = granted_.try_emplace(receipt->to.value(), receipt->receipt.taken);
  bool holds_any = false;
  for (size_t phase = 0; phase < kNumPhases; ++phase) {
    holds_any = holds_any || machine_.held(receipt->to, static_cast<Phase>(phase)) > 0;
  }
  if (!holds_any) granted->second = receipt->receipt.taken;
  receipt->receipt.taken = granted->second;
}

void Rank::ScheduleTick() {
  const int64_t next_us = machine_.next_tick_us();
  if (next_us == std::numeric_limits<int64_t>::max() || next_us >= tick_at_us_) return;
  tick_at_us_ = next_us;
  const int64_t delay_us = next_us - job_.scheduler().NowMicros();
  job_.scheduler().RunAfter(delay_us, [this, alive = alive_] {
    if (!*alive) return;
    tick_at_us_ = std::numeric_limits<int64_t>::max();
    Deliver([this] {
      if (has_left_) return;
      machine_.OnTick(job_.scheduler().NowMicros());
      Work();
    });
  });
}

}  // namespace thermocline::shared_rows
