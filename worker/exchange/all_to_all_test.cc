// Ranks exchange the blocks of some steps over streams that break, lose, delay and repeat what they
// carry, from a seed, in virtual time. Every block that a rank uses is compared with the function
// that it is of.
#include "worker/exchange/all_to_all.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline {
namespace {

constexpr int64_t kMillisecond = 1'000;
constexpr int64_t kSecond = 1'000'000;
// Far longer than any run takes that makes progress.
constexpr int64_t kPatience = 120 * kSecond;

enum class Planted {
  kNone,
  kWaitsTooEarly,      // a rank waits for gradients before it has sent its own
  kNeverReleases,      // a rank does not release the rows that it has used
  kLostChunk,          // a chunk is lost, and the stream goes on
  kFlippedBit,         // a chunk arrives with another bit
  kChangedBlock,       // a repeated chunk is of other content
  kFalseReceipt,       // a receiver acknowledges what it does not have
  kForgetfulReceiver,  // a receiver no longer has what it acknowledged
  kTooMuchCredit,      // a receiver takes more than it has room for
  kLeavesByReceipts,   // ranks that have left leave others waiting for their receipts
  kPushesTooEarly,     // a rank's push of the last step is whole before it has all blocks of it
};

struct Case {
  uint64_t seed = 0;
  uint32_t num_ranks = 2;
  int64_t start = 0;
  int64_t num_steps = 3;  // End of all data.
  int window_steps = 2;
  int ring_steps = 4;     // Steps whose keys a rank posts beyond those it has trained.
  bool is_dense = false;  // The job's steps have the dense phases alone.
  std::array<int, kNumPhases> credit_steps{};
  size_t max_chunk_bytes = 16;
  int most_bytes = 100;  // of a block
  int64_t most_delay_us = 5 * kMillisecond;
  int breaks = 0;                                          // Streams that break, at the most.
  bool repeats = false;                                    // Chunks come twice, receipts late.
  std::optional<std::pair<uint32_t, int64_t>> failed;      // rank, step: it can't read its data
  bool rank_0_ends_early = false;                          // By one step.
  std::optional<std::pair<uint32_t, int64_t>> dies_at_us;  // rank, time
  Planted planted = Planted::kNone;
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t Draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool Chance(double share) { return std::bernoulli_distribution(share)(engine_); }

 private:
  std::mt19937_64 engine_;
};

Case MakeCase(uint64_t seed) {
  Random random(seed);
  Case made;
  made.seed = seed;
  made.num_ranks =
      static_cast<uint32_t>(random.Chance(0.1) ? random.Draw(5, 8) : random.Draw(1, 4));
  made.start = random.Draw(0, 3);
  made.num_steps = made.start + random.Draw(1, 6);
  made.window_steps = static_cast<int>(random.Draw(1, 3));
  // The smallest: one step is trained, those of the window are planned, and a block of each phase
  // has room.
  const bool smallest = random.Chance(0.3);
  made.ring_steps = made.window_steps + static_cast<int>(smallest ? 1 : random.Draw(1, 3));
  for (int& credit : made.credit_steps) credit = static_cast<int>(smallest ? 1 : random.Draw(1, 4));
  made.max_chunk_bytes = random.Chance(0.2) ? 1 : random.Draw(2, 60);
  made.most_bytes = static_cast<int>(random.Draw(0, made.max_chunk_bytes == 1 ? 10 : 120));
  made.most_delay_us = random.Chance(0.5) ? 100 : 20 * kMillisecond;
  made.breaks = static_cast<int>(random.Chance(0.3) ? 0 : random.Draw(1, 25));
  made.repeats = random.Chance(0.5);
  made.is_dense = random.Chance(0.15);
  return made;
}

std::vector<uint8_t> Content(const Case& of, BlockId id, uint32_t from, uint32_t to) {
  uint64_t state = Mix64(of.seed ^ Mix64(id.step.value() * 8 + static_cast<int>(id.phase)) ^
                         Mix64(from * 100 + to + 1'000'000));
  std::vector<uint8_t> bytes(state % (of.most_bytes + 1));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(state = Mix64(state));
  return bytes;
}
Block MakeBlock(const std::vector<uint8_t>& bytes, BlockKind kind = BlockKind::kData) {
  return {kind, std::make_shared<BlockBytes>(bytes.begin(), bytes.end())};
}

class Cluster;

// A worker, without what it computes: its planner and its trainer, as they wait in the real one.
class Rank {
 public:
  Rank(const Case& of, uint32_t rank, Cluster* cluster);

  AllToAll& machine() { return machine_; }
  // Goes on as far as it can.
  void Work();
  // The servers have applied the last step.
  void OnAllApplied();
  // Or dies.
  void Leave();

  bool has_left() const { return has_left_; }
  bool is_trained() const { return is_trained_; }
  int64_t trained() const { return trained_; }
  absl::Status end() const { return end_; }
  const std::vector<exchange_action::Complain>& complaints() const { return complaints_; }

 private:
  ExchangeOptions OptionsOf() const;
  bool WorkOnce();
  bool PostKeys();
  bool AdmitKeys();
  bool PostPlans();
  bool UsePlans();
  bool Train();
  void Post(BlockId id);
  bool Use(BlockId id);
  void CarryOut();
  void ScheduleTick();

  const Case& case_;
  const uint32_t rank_;
  Cluster* const cluster_;
  AllToAll machine_;
  int64_t posted_;               // Keys of the steps before are posted.
  int64_t admitted_;             // And all ranks' are here.
  int64_t planned_;              // And their plans are posted.
  int64_t known_;                // And all ranks' plans are here.
  std::optional<int64_t> last_;  // The first step that there is not.
  absl::Status end_;             // Why; OK: the data end.
  int64_t trained_;
  size_t at_ = 0;  // In the step trained.
  int64_t busy_until_us_ = 0;
  bool is_trained_ = false, has_left_ = false;
  int64_t tick_at_us_ = std::numeric_limits<int64_t>::max();
  std::vector<exchange_action::Complain> complaints_;
};

// The ranks, the network between them, and the servers' ledger.
class Cluster {
 public:
  explicit Cluster(const Case& of);

  // Says what went wrong first; empty: nothing.
  std::string Run();

  VirtualScheduler& scheduler() { return scheduler_; }
  Random& random() { return random_; }
  void Wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  void Carry(uint32_t from, const exchange_action::OpenStream& open);
  void Carry(uint32_t from, const exchange_action::SendChunk& send);
  void Carry(uint32_t from, const exchange_action::SendReceipt& send);
  void Push(uint32_t rank, int64_t step);
  // Calls rank's OnAllApplied when a server has every rank's push of `step`.
  void AskApplied(uint32_t rank, int64_t step);
  void CheckHeld(uint32_t rank) const;
  void BreakStreamsOf(uint32_t rank);
  Rank& rank(uint32_t rank) { return *ranks_[rank]; }

 private:
  struct Stream {
    bool is_whole = true;
    bool delivers_late = false;         // Once broken: what is on its way arrives, maybe late.
    int64_t forth_us = 0, back_us = 0;  // When the last frame of a direction arrives.
    int frames_left = std::numeric_limits<int>::max();
    int receipts = 0;
  };
  using StreamId = std::tuple<uint32_t, uint32_t, uint64_t>;  // from, to, attempt

  int64_t Delay() { return random_.Draw(0, case_.most_delay_us); }
  // Runs `frame` at `to` when it arrives, if it does.
  void Deliver(const std::shared_ptr<Stream>& stream, int64_t* direction_us, bool in_order,
               uint32_t to, std::function<void()> frame);
  void CountFrame(uint32_t from, uint32_t to, uint64_t attempt);
  void Break(const StreamId& id);
  bool StrikesNow(Planted planted);

  const Case case_;
  Random random_;
  VirtualScheduler scheduler_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<StreamId, std::shared_ptr<Stream>> streams_;
  int breaks_left_;
  bool has_struck_ = false;
  std::vector<int64_t> pushed_;                      // [num_ranks] The last step.
  std::vector<std::pair<uint32_t, int64_t>> asked_;  // rank, step
  std::string wrong_;
};

ExchangeOptions Rank::OptionsOf() const {
  ExchangeOptions options;
  options.rank = WorkerRank(rank_);
  options.num_ranks = case_.num_ranks;
  options.start_step = Step(case_.start);
  options.phases = case_.is_dense ? kDensePhases : kAllPhases;
  options.window_steps = case_.window_steps;
  options.credit_steps = case_.credit_steps;
  options.max_block_bytes = case_.most_bytes;
  options.max_chunk_bytes = case_.max_chunk_bytes;
  options.complain_after_us = 20 * kSecond;
  return options;
}

Rank::Rank(const Case& of, uint32_t rank, Cluster* cluster)
    : case_(of),
      rank_(rank),
      cluster_(cluster),
      machine_(OptionsOf(), 0),
      posted_(of.start),
      admitted_(of.start),
      planned_(of.start),
      known_(of.start),
      trained_(of.start) {}

void Rank::Work() {
  if (has_left_) return;
  while (machine_.failure().ok() && WorkOnce()) {
  }
  if (!machine_.failure().ok()) {
    cluster_->Wrong(absl::StrCat("rank ", rank_, " fails: ", machine_.failure().ToString()));
    return;
  }
  CarryOut();
  cluster_->CheckHeld(rank_);
  ScheduleTick();
  if (is_trained_ && machine_.MayLeave()) Leave();
}

bool Rank::WorkOnce() {
  if (PostKeys()) return true;
  if (PostPlans()) return true;
  if (AdmitKeys()) return true;
  if (UsePlans()) return true;
  return Train();
}

// The reader's and planner's thread.
bool Rank::PostKeys() {
  int64_t end = case_.num_steps;
  if (case_.rank_0_ends_early && rank_ == 0) --end;
  const bool fails = case_.failed.has_value() && case_.failed->first == rank_;
  if (fails) end = std::min(end, case_.failed->second);
  if (case_.is_dense) last_ = end;
  if (last_.has_value() || posted_ > end || posted_ >= trained_ + case_.ring_steps) return false;
  const BlockId id{Step(posted_), Phase::kKeys};
  std::vector<Block> blocks;
  for (uint32_t to = 0; to < case_.num_ranks; ++to) {
    if (posted_ < end) {
      blocks.push_back(MakeBlock(Content(case_, id, rank_, to)));
    } else {
      blocks.push_back(MakeBlock({}, fails ? BlockKind::kFailed : BlockKind::kEnd));
    }
  }
  EXPECT_TRUE(machine_.Post(id, std::move(blocks)).ok());
  ++posted_;
  return true;
}

bool Rank::AdmitKeys() {
  if (last_.has_value() || admitted_ >= posted_) return false;
  const BlockId id{Step(admitted_), Phase::kKeys};
  if (!machine_.Await(cluster_->scheduler().NowMicros(), id)) return false;
  const absl::StatusOr<bool> has_step = machine_.HasStep(id.step);
  if (has_step.ok() && *has_step) {
    Use(id);
    ++admitted_;
    return true;
  }
  last_ = admitted_;
  end_ = has_step.status();
  return true;
}

// The plan of a step is over the whole window. It needs a context, as a trained step does.
bool Rank::PostPlans() {
  const bool has_window =
      last_.has_value() ? planned_ < *last_ : admitted_ > planned_ + case_.window_steps;
  const int contexts = case_.ring_steps - case_.window_steps;
  if (case_.is_dense || !has_window || planned_ >= trained_ + contexts) return false;
  Post({Step(planned_++), Phase::kPlans});
  return true;
}

bool Rank::UsePlans() {
  const BlockId id{Step(known_), Phase::kPlans};
  if (known_ >= planned_ || !machine_.Await(cluster_->scheduler().NowMicros(), id)) return false;
  ++known_;
  return Use(id);
}

bool Rank::Use(BlockId id) {
  const std::vector<const Block*> blocks = machine_.BlocksOf(id);
  for (uint32_t from = 0; from < case_.num_ranks; ++from) {
    const std::vector<uint8_t> expected = Content(case_, id, from, rank_);
    const BlockBytes& bytes = *blocks[from]->bytes;
    if (bytes != BlockBytes(expected.begin(), expected.end())) {
      cluster_->Wrong(absl::StrCat("rank ", rank_, " has wrong bytes of rank ", from));
    }
  }
  const bool keeps =
      case_.planted == Planted::kNeverReleases && rank_ == 0 && id.phase == Phase::kRows;
  if (!keeps) machine_.Release(id);
  return true;
}

void Rank::Post(BlockId id) {
  std::vector<Block> blocks;
  for (uint32_t to = 0; to < case_.num_ranks; ++to) {
    blocks.push_back(MakeBlock(Content(case_, id, rank_, to)));
  }
  EXPECT_TRUE(machine_.Post(id, std::move(blocks)).ok());
}

// The training thread.
bool Rank::Train() {
  if (is_trained_) return false;
  if (last_.has_value() && trained_ >= *last_) {
    is_trained_ = true;
    cluster_->AskApplied(rank_, trained_ - 1);
    return true;
  }
  if (!case_.is_dense && known_ <= trained_) {
    machine_.CheckOwesNothing();
    return false;
  }
  const int64_t now_us = cluster_->scheduler().NowMicros();
  if (now_us < busy_until_us_) return false;
  enum Act { kPost, kUse, kPush };
  struct Do {
    Act act;
    Phase phase = Phase::kRows;
  };
  std::vector<Do> step = {
      {kPost, Phase::kRows},           {kUse, Phase::kRows},         {kPost, Phase::kGradients},
      {kPost, Phase::kDenseGradients}, {kUse, Phase::kGradients},    {kUse, Phase::kDenseGradients},
      {kPost, Phase::kDenseWeights},   {kUse, Phase::kDenseWeights}, {kPush}};
  if (case_.planted == Planted::kWaitsTooEarly) std::swap(step[2], step[4]);
  if (case_.planted == Planted::kPushesTooEarly) std::swap(step[7], step[8]);
  const Do next = step[at_];
  const BlockId id{Step(trained_), next.phase};
  if (next.act == kPush) {
    cluster_->Push(rank_, trained_);
    machine_.NotePushed(Step(trained_));
  } else if (!case_.is_dense || kDensePhases.Has(next.phase)) {
    if (next.act == kPost) Post(id);
    if (next.act == kUse && (!machine_.Await(now_us, id) || !Use(id))) return false;
  }
  if (cluster_->random().Chance(0.3)) {
    const int64_t busy_us = cluster_->random().Draw(1, 2 * kMillisecond);
    busy_until_us_ = now_us + busy_us;
    cluster_->scheduler().RunAfter(busy_us, [this] { Work(); });
  }
  if (++at_ == step.size()) {
    at_ = 0;
    ++trained_;
  }
  return true;
}

void Rank::Leave() {
  has_left_ = true;
  cluster_->BreakStreamsOf(rank_);
}

void Rank::OnAllApplied() {
  if (has_left_) return;
  machine_.Finish();
  Work();
}

void Rank::CarryOut() {
  for (const ExchangeAction& action : machine_.TakeActions()) {
    if (const auto* open = std::get_if<exchange_action::OpenStream>(&action)) {
      cluster_->Carry(rank_, *open);
    } else if (const auto* chunk = std::get_if<exchange_action::SendChunk>(&action)) {
      cluster_->Carry(rank_, *chunk);
    } else if (const auto* receipt = std::get_if<exchange_action::SendReceipt>(&action)) {
      cluster_->Carry(rank_, *receipt);
    } else {
      complaints_.push_back(std::get<exchange_action::Complain>(action));
    }
  }
}

void Rank::ScheduleTick() {
  const int64_t next_us = machine_.next_tick_us();
  if (next_us == std::numeric_limits<int64_t>::max() || next_us >= tick_at_us_) return;
  tick_at_us_ = next_us;
  cluster_->scheduler().RunAfter(next_us - cluster_->scheduler().NowMicros(), [this] {
    tick_at_us_ = std::numeric_limits<int64_t>::max();
    if (has_left_) return;
    machine_.OnTick(cluster_->scheduler().NowMicros());
    Work();
  });
}

Cluster::Cluster(const Case& of)
    : case_(of),
      random_(Mix64(of.seed)),
      breaks_left_(of.breaks),
      pushed_(of.num_ranks, of.start - 1) {
  for (uint32_t rank = 0; rank < of.num_ranks; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(case_, rank, this));
  }
}

std::string Cluster::Run() {
  for (const auto& rank : ranks_) scheduler_.RunAfter(Delay(), [&rank] { rank->Work(); });
  if (case_.dies_at_us.has_value()) {
    scheduler_.RunAfter(case_.dies_at_us->second,
                        [this] { ranks_[case_.dies_at_us->first]->Leave(); });
  }
  while (wrong_.empty() && scheduler_.NowMicros() < kPatience && scheduler_.RunNext()) {
  }
  for (uint32_t rank = 0; rank < case_.num_ranks; ++rank) {
    if (!ranks_[rank]->has_left()) {
      Wrong(absl::StrCat("rank ", rank, " waits for ever, at step ", ranks_[rank]->trained()));
    }
  }
  return wrong_;
}

// A fault that strikes once, at some moment.
bool Cluster::StrikesNow(Planted planted) {
  if (case_.planted != planted || has_struck_ || !random_.Chance(0.1)) return false;
  has_struck_ = true;
  return true;
}

void Cluster::Deliver(const std::shared_ptr<Stream>& stream, int64_t* direction_us, bool in_order,
                      uint32_t to, std::function<void()> frame) {
  int64_t at_us = scheduler_.NowMicros() + Delay();
  if (in_order) at_us = *direction_us = std::max(at_us, *direction_us);
  scheduler_.RunAfter(at_us - scheduler_.NowMicros(), [this, stream, to, frame] {
    if (ranks_[to]->has_left() || (!stream->is_whole && !stream->delivers_late)) return;
    frame();
    ranks_[to]->Work();
  });
}

// Breaks the stream when its time has come.
void Cluster::CountFrame(uint32_t from, uint32_t to, uint64_t attempt) {
  const StreamId id{from, to, attempt};
  if (--streams_.at(id)->frames_left <= 0) Break(id);
}

// Who opened it learns of it; what is on its way is lost or comes late.
void Cluster::Break(const StreamId& id) {
  const std::shared_ptr<Stream> stream = streams_.at(id);
  if (!stream->is_whole) return;
  stream->is_whole = false;
  stream->delivers_late = random_.Chance(0.5);
  scheduler_.RunAfter(Delay(), [this, id] {
    const auto [from, to, attempt] = id;
    if (ranks_[from]->has_left()) return;
    ranks_[from]->machine().OnClosed(scheduler_.NowMicros(), WorkerRank(to), attempt,
                                     absl::UnavailableError("the stream broke"));
    ranks_[from]->Work();
  });
}

void Cluster::BreakStreamsOf(uint32_t rank) {
  for (const auto& [id, stream] : streams_) {
    if (std::get<0>(id) == rank || std::get<1>(id) == rank) Break(id);
  }
}

void Cluster::Carry(uint32_t from, const exchange_action::OpenStream& open) {
  const uint32_t to = open.to.value();
  const auto stream = std::make_shared<Stream>();
  streams_[{from, to, open.attempt}] = stream;
  const bool is_refused = ranks_[to]->has_left();
  if (is_refused || breaks_left_ > 0) {
    --breaks_left_;
    const bool at_once = is_refused || random_.Chance(0.2);
    stream->frames_left = at_once ? 1 : static_cast<int>(random_.Draw(1, 40));
  }
  CountFrame(from, to, open.attempt);
  Deliver(stream, &stream->forth_us, true, to, [this, from, to, attempt = open.attempt] {
    ranks_[to]->machine().OnOpened(scheduler_.NowMicros(), WorkerRank(from), attempt);
  });
}

void Cluster::Carry(uint32_t from, const exchange_action::SendChunk& send) {
  const uint32_t to = send.to.value();
  const std::shared_ptr<Stream> stream = streams_.at({from, to, send.attempt});
  CountFrame(from, to, send.attempt);
  auto bytes =
      std::make_shared<std::vector<uint8_t>>(send.chunk.data.begin(), send.chunk.data.end());
  if (!bytes->empty() && StrikesNow(Planted::kFlippedBit)) (*bytes)[0] ^= 1;
  const bool is_lost = StrikesNow(Planted::kLostChunk);
  const bool is_changed = StrikesNow(Planted::kChangedBlock);
  const int copies = is_lost ? 0 : is_changed || (case_.repeats && random_.Chance(0.1)) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    Deliver(stream, &stream->forth_us, true, to,
            [this, from, to, attempt = send.attempt, bytes, chunk = send.chunk,
             other = is_changed && copy == 1] {
              BlockChunk arrived = chunk;
              arrived.data = *bytes;
              if (other) arrived.checksum ^= 1;
              ranks_[to]->machine().OnChunk(scheduler_.NowMicros(), WorkerRank(from), attempt,
                                            arrived);
            });
  }
  // If the stream breaks, the answer may never come.
  const bool is_answered = stream->is_whole || random_.Chance(0.5);
  scheduler_.RunAfter(random_.Draw(0, 50), [=, to = send.to, attempt = send.attempt] {
    if (ranks_[from]->has_left() || !is_answered) return;
    ranks_[from]->machine().OnSent(to, attempt);
    ranks_[from]->Work();
  });
}

void Cluster::Carry(uint32_t from, const exchange_action::SendReceipt& send) {
  const uint32_t to = send.to.value();
  const auto found = streams_.find({to, from, send.attempt});
  ASSERT_NE(found, streams_.end());
  const std::shared_ptr<Stream> stream = found->second;
  CountFrame(to, from, send.attempt);
  Receipt receipt = send.receipt;
  const size_t phase = static_cast<size_t>(random_.Draw(0, kNumPhases - 1));
  if (StrikesNow(Planted::kFalseReceipt)) receipt.received[phase] = receipt.received[phase] + 1;
  if (StrikesNow(Planted::kTooMuchCredit)) {
    for (Step& taken : receipt.taken) taken = taken + 1;
  }
  const bool has_some = receipt.received[phase] >= Step(case_.start);
  if (send.attempt > 1 && stream->receipts == 0 && has_some &&
      StrikesNow(Planted::kForgetfulReceiver)) {
    receipt.received[phase] = receipt.received[phase] - 1;
  }
  // All but the first may pass each other.
  const bool in_order = stream->receipts++ == 0 || !case_.repeats;
  Deliver(
      stream, &stream->back_us, in_order, to, [this, from, to, attempt = send.attempt, receipt] {
        ranks_[to]->machine().OnReceipt(scheduler_.NowMicros(), WorkerRank(from), attempt, receipt);
      });
}

void Cluster::Push(uint32_t rank, int64_t step) {
  ASSERT_EQ(step, pushed_[rank] + 1);
  pushed_[rank] = step;
  const std::vector<std::pair<uint32_t, int64_t>> asked = std::exchange(asked_, {});
  for (const auto& [by, about] : asked) AskApplied(by, about);
}

void Cluster::AskApplied(uint32_t rank, int64_t step) {
  if (case_.planted == Planted::kLeavesByReceipts) return;
  if (*std::min_element(pushed_.begin(), pushed_.end()) < step) {
    asked_.push_back({rank, step});
    return;
  }
  scheduler_.RunAfter(Delay(), [this, rank] { ranks_[rank]->OnAllApplied(); });
}

void Cluster::CheckHeld(uint32_t rank) const {
  for (uint32_t from = 0; from < case_.num_ranks; ++from) {
    for (size_t phase = 0; phase < kNumPhases && from != rank; ++phase) {
      ASSERT_LE(ranks_[rank]->machine().held(WorkerRank(from), static_cast<Phase>(phase)),
                case_.credit_steps[phase]);
    }
  }
}

TEST(AllToAllTest, EveryRankGetsEveryBlockWhateverTheStreamsDo) {
  const uint64_t seed = TestSeed();
  for (uint64_t i = 0; i < RandomRuns(uint64_t{1000}); ++i) {
    const Case made = MakeCase(Mix64(seed + i));
    Cluster cluster(made);
    ASSERT_EQ(cluster.Run(), "") << "case " << i << ", " << made.num_ranks << " ranks";
    for (uint32_t rank = 0; rank < made.num_ranks; ++rank) {
      ASSERT_EQ(cluster.rank(rank).trained(), made.num_steps);
      ASSERT_TRUE(cluster.rank(rank).complaints().empty());
    }
  }
}

// A rank whose data fail: the steps before are trained by all, and all say whose data it was.
TEST(AllToAllTest, StepsBeforeAFailureAreTrained) {
  const uint64_t seed = TestSeed();
  for (uint64_t i = 0; i < RandomRuns(uint64_t{200}); ++i) {
    Case made = MakeCase(Mix64(seed + i));
    Random random(seed + i);
    made.is_dense = false;
    made.failed.emplace(random.Draw(0, made.num_ranks - 1),
                        random.Draw(made.start + 1, made.num_steps));
    Cluster cluster(made);
    ASSERT_EQ(cluster.Run(), "") << "case " << i;
    for (uint32_t rank = 0; rank < made.num_ranks; ++rank) {
      ASSERT_EQ(cluster.rank(rank).trained(), made.failed->second);
      ASSERT_EQ(cluster.rank(rank).end(),
                absl::FailedPreconditionError(absl::StrCat("rank ", made.failed->first,
                                                           " can't read its data from step ",
                                                           made.failed->second, " on: ")));
    }
  }
}

TEST(AllToAllTest, DifferentDataIsAnError) {
  const uint64_t seed = TestSeed();
  for (uint64_t i = 0; i < RandomRuns(uint64_t{100}); ++i) {
    Case made = MakeCase(Mix64(seed + i));
    made.num_ranks = std::max(2u, made.num_ranks);
    ++made.num_steps;
    made.is_dense = false;
    made.rank_0_ends_early = true;
    Cluster cluster(made);
    ASSERT_EQ(cluster.Run(), "") << "case " << i;
    for (uint32_t rank = 0; rank < made.num_ranks; ++rank) {
      ASSERT_EQ(cluster.rank(rank).trained(), made.num_steps - 1);
      ASSERT_EQ(cluster.rank(rank).end(),
                absl::InvalidArgumentError(
                    absl::StrCat("the data of rank 0 end before step ", made.num_steps - 1,
                                 ", those of rank 1 do not: the workers see different data")));
    }
  }
}

// The missing block that is needed first is that of the rank that died.
TEST(AllToAllTest, ComplaintsNameTheRankThatDied) {
  const uint64_t seed = TestSeed();
  int complained = 0;
  for (uint64_t i = 0; i < RandomRuns(uint64_t{200}); ++i) {
    Case made = MakeCase(Mix64(seed + i));
    made.num_ranks = std::max(2u, made.num_ranks);
    made.num_steps += 3;
    Random random(seed + i);
    const auto dead = static_cast<uint32_t>(random.Draw(0, made.num_ranks - 1));
    made.dies_at_us.emplace(dead, random.Draw(0, 60 * kMillisecond));
    Cluster cluster(made);
    cluster.Run();
    std::optional<ExchangeWait> first;
    for (uint32_t rank = 0; rank < made.num_ranks; ++rank) {
      if (rank == dead) continue;
      for (const exchange_action::Complain& complaint : cluster.rank(rank).complaints()) {
        EXPECT_GE(complaint.wait.waited_us, 20 * kSecond);
        if (!first.has_value() || complaint.wait.needed_for < first->needed_for) {
          first = complaint.wait;
        }
      }
      ASSERT_TRUE(cluster.rank(rank).is_trained() || first.has_value());
    }
    if (!first.has_value()) continue;
    ++complained;
    ASSERT_EQ(first->about, WorkerRank(dead)) << "case " << i;
    ASSERT_FALSE(first->stream.ok());
  }
  EXPECT_GT(complained, RandomRuns(40));
}

TEST(AllToAllTest, ComplaintsOfAWaitGetRarer) {
  ExchangeOptions options;
  options.num_ranks = 2;
  options.phases = kDensePhases;
  options.max_backoff_us = options.min_backoff_us = 1000 * kSecond;
  AllToAll machine(options, 0);
  const Block block{BlockKind::kData, std::make_shared<BlockBytes>()};
  const BlockId id{Step(0), Phase::kDenseGradients};
  ASSERT_TRUE(machine.Post(id, {block, block}).ok());
  EXPECT_FALSE(machine.Await(0, id));
  machine.TakeActions();
  for (const int64_t at_us : {20 * kSecond, 40 * kSecond, 80 * kSecond}) {
    EXPECT_EQ(machine.next_tick_us(), at_us);
    machine.OnTick(at_us);
    const std::vector<ExchangeAction> actions = machine.TakeActions();
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(std::get<exchange_action::Complain>(actions[0]).wait.waited_us, at_us);
  }
}

// What was on its way when a stream broke may come when the next one is open.
TEST(AllToAllTest, AnEarlierAttemptThatComesLateIsVoid) {
  ExchangeOptions options;
  options.num_ranks = 2;
  options.phases = kDensePhases;
  AllToAll machine(options, 0);
  machine.TakeActions();
  const std::vector<uint8_t> byte = {1};
  BlockChunk chunk;
  chunk.id = {Step(0), Phase::kDenseWeights};
  chunk.checksum = Crc32c(byte.data(), 1);
  chunk.block_bytes = 1;
  chunk.data = byte;
  const auto next_receipt = [&machine] {
    const std::vector<ExchangeAction> actions = machine.TakeActions();
    EXPECT_EQ(actions.size(), 1u);
    return actions.empty() ? exchange_action::SendReceipt()
                           : std::get<exchange_action::SendReceipt>(actions[0]);
  };
  machine.OnOpened(0, WorkerRank(1), 2);
  machine.OnOpened(0, WorkerRank(1), 1);
  EXPECT_EQ(next_receipt().attempt, 2u);
  machine.OnChunk(0, WorkerRank(1), 1, chunk);
  EXPECT_EQ(machine.held(WorkerRank(1), Phase::kDenseWeights), 0);
  machine.OnChunk(0, WorkerRank(1), 2, chunk);
  EXPECT_EQ(machine.held(WorkerRank(1), Phase::kDenseWeights), 1);
  EXPECT_TRUE(machine.TakeActions().empty()) << "its receipt may wait for those of more blocks";
  EXPECT_EQ(machine.next_tick_us(), options.receipt_delay_us);
  machine.OnTick(options.receipt_delay_us);
  const exchange_action::SendReceipt receipt = next_receipt();
  EXPECT_EQ(receipt.attempt, 2u);
  EXPECT_EQ(receipt.receipt.received[5], Step(0));
}

TEST(AllToAllTest, FindsPlantedFaults) {
  const uint64_t seed = TestSeed();
  const std::vector<std::pair<Planted, std::string>> faults = {
      {Planted::kWaitsTooEarly, " and owes the gradients of step "},
      {Planted::kNeverReleases, " is not released"},
      {Planted::kLostChunk, "INTERNAL"},
      {Planted::kFlippedBit, "with a wrong checksum"},
      {Planted::kChangedBlock, "again, and they differ"},
      {Planted::kFalseReceipt, "which was not sent"},
      {Planted::kForgetfulReceiver, "it has lost blocks"},
      {Planted::kTooMuchCredit, "but they are taken through"},
      {Planted::kLeavesByReceipts, "waits for ever"},
      {Planted::kPushesTooEarly, "waits for ever"},
  };
  for (const auto& [planted, says] : faults) {
    bool is_found = false;
    for (uint64_t i = 0; i < 300 && !is_found; ++i) {
      Case made = MakeCase(Mix64(seed + i));
      made.num_ranks = std::max(2u, made.num_ranks);
      made.num_steps += 2;
      made.is_dense = false;
      made.breaks = 20;
      made.planted = planted;
      Cluster cluster(made);
      is_found = absl::StrContains(cluster.Run(), says);
    }
    EXPECT_TRUE(is_found) << static_cast<int>(planted);
  }
}

}  // namespace
}  // namespace thermocline
