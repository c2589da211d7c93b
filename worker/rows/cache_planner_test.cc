// Random traces are planned, and the plans carried out against a slab whose rows know which key and
// value they hold, and servers that have seen no more than the pushes that a pull asks for.
#include "worker/rows/cache_planner.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/testing/key_of_hash.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

struct PlannerTrace {
  CachePlannerOptions options;
  uint32_t num_servers = 1;
  std::vector<TableId> tables;
  Step first = Step(0);
  std::vector<BatchPlan> batches;  // their keys alone
  int most_ahead = 0;              // steps admitted beyond the window, now and then
};

class TraceMaker {
 public:
  explicit TraceMaker(std::mt19937_64* random) : random_(*random) {}

  PlannerTrace Make(bool large) {
    PlannerTrace trace;
    const int num_tables = Draw(1, 3);
    const int num_groups = Draw(1, 2);
    trace.options.groups.resize(num_groups);
    for (int t = 0; t < num_tables; ++t) {
      trace.tables.push_back(TableId(static_cast<uint32_t>(10 * Draw(0, 99) + t)));
      trace.options.groups[Draw(0, num_groups - 1)].tables.push_back(t);
    }
    for (CachePlannerOptions::Group& group : trace.options.groups) {
      // So few that a search for a victim passes all of them often enough to find one.
      group.capacity = large ? Draw(0, 500) : Draw(0, 20);
    }
    trace.options.window_steps = Draw(1, large ? 40 : 8);
    trace.num_servers = Draw(1, 3);
    trace.first = Step(Draw(0, 1) == 0 ? 0 : Draw(1, 100));
    trace.most_ahead = Draw(0, 2);
    trace.batches.resize(large ? 60 : Draw(1, 40));

    const int key_space = large ? Draw(100, 2000) : Draw(1, 40);
    const int most_keys = large ? Draw(1, 500) : Draw(1, 12);
    const bool colliding = Draw(0, 1) == 0;
    for (BatchPlan& batch : trace.batches) {
      batch.tables.resize(num_tables);
      for (int t = 0; t < num_tables; ++t) {
        std::set<Key> keys;
        const int lookups = Draw(0, most_keys);
        for (int i = 0; i < lookups; ++i) {
          const int rank = std::min(Draw(0, key_space - 1), Draw(0, key_space - 1));
          keys.insert(colliding ? CollidingKey(trace.tables[t], rank) : static_cast<Key>(rank));
        }
        FillTable(trace, t, keys, &batch.tables[t]);
      }
    }
    for (CachePlannerOptions::Group& group : trace.options.groups) {
      group.keeps_rows = Draw(0, 3) == 0;
      if (group.keeps_rows) group.capacity = NumKeys(trace, group) + Draw(0, 2);
    }
    return trace;
  }

 private:
  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  // Four keys of each table share the upper half of their hash, and tables their whole hashes.
  static Key CollidingKey(TableId table, int rank) {
    const uint64_t hash = Mix64(rank / 4) >> 32 << 32 | static_cast<uint64_t>(rank % 4);
    return KeyOfHash(TableSalt(table), hash);
  }

  static int NumKeys(const PlannerTrace& trace, const CachePlannerOptions::Group& group) {
    size_t keys = 0;
    for (const int32_t t : group.tables) {
      std::set<Key> of_table;
      for (const BatchPlan& batch : trace.batches) {
        of_table.insert(batch.tables[t].keys.begin(), batch.tables[t].keys.end());
      }
      keys += of_table.size();
    }
    return static_cast<int>(keys);
  }

  void FillTable(const PlannerTrace& trace, int t, const std::set<Key>& drawn, TablePlan* table) {
    std::vector<Key> keys(drawn.begin(), drawn.end());
    std::shuffle(keys.begin(), keys.end(), random_);
    table->id = trace.tables[t];
    const ClusterMap cluster(trace.num_servers);
    table->server_begin = {0};
    for (uint32_t s = 0; s < trace.num_servers; ++s) {
      for (Key key : keys) {
        if (cluster.ServerOfHash(KeyHash(TableSalt(table->id), key)).value() == s) {
          table->keys.push_back(key);
        }
      }
      table->server_begin.push_back(table->num_unique());
    }
  }

  std::mt19937_64& random_;
};

using TableKey = std::pair<int32_t, Key>;

class TraceRunner {
 public:
  // `threads`: the twin's.
  TraceRunner(const PlannerTrace& trace, ThreadPool* threads)
      : trace_(trace),
        cluster_(trace.num_servers),
        planner_(trace.options, cluster_, trace.tables, &one_thread_),
        twin_(trace.options, cluster_, trace.tables, threads),
        plans_(trace.batches.size()),
        twins_(trace.batches.size()),
        slabs_(trace.options.groups.size()) {
    for (const CachePlannerOptions::Group& group : trace.options.groups) {
      if (group.keeps_rows) kept_.insert(group.tables.begin(), group.tables.end());
    }
    for (size_t b = 0; b < trace.batches.size(); ++b) {
      for (size_t t = 0; t < trace.tables.size(); ++t) {
        for (Key key : trace.batches[b].tables[t].keys) uses_[{t, key}].push_back(StepOf(b));
      }
    }
  }

  void Run(std::mt19937_64* random) {
    size_t admitted = 0;
    for (size_t b = 0; b < plans_.size(); ++b) {
      const size_t window_end = b + trace_.options.window_steps + 1 +
                                std::uniform_int_distribution<int>(0, trace_.most_ahead)(*random);
      for (; admitted < std::min(window_end, plans_.size()); ++admitted) {
        const std::vector<KeyShares> shares = SharesOf(trace_.batches[admitted]);
        ASSERT_TRUE(planner_.Admit(Step(StepOf(admitted)), shares, &plans_[admitted]).ok());
        ASSERT_TRUE(twin_.Admit(Step(StepOf(admitted)), shares, &twins_[admitted]).ok());
      }
      step_ = StepOf(b);
      last_admitted_ = StepOf(admitted - 1);
      planner_.Plan(Step(step_), SharesOf(trace_.batches[b]), &plans_[b]);
      twin_.Plan(Step(step_), SharesOf(trace_.batches[b]), &twins_[b]);
      RunStep(trace_.batches[b], plans_[b]);
      ExpectTheSame(plans_[b], twins_[b]);
      ExpectBoundedMemory();
      if (std::uniform_int_distribution<int>(0, 9)(*random) == 0) WriteBackHeld();
      if (testing::Test::HasFailure()) return;
    }
    WriteBackHeld();
    for (const auto& [key, value] : newest_) {
      EXPECT_EQ(ServerValue(key, step_), value);
    }
  }

  const CacheCounts& total() const { return total_; }
  size_t loaded_to_be_kept() const { return loaded_to_be_kept_; }

 private:
  struct SlabRow {
    bool held = false;
    TableKey key;
    uint64_t value = 0;
    int64_t pulled = -1;
  };
  struct Push {
    int64_t step;
    bool written_back;  // a whole row, not a gradient
    uint64_t value;
  };

  int64_t StepOf(size_t batch) const { return trace_.first.value() + static_cast<int64_t>(batch); }

  // The first step behind this one that uses the key, among those admitted; -1: none does.
  int64_t NextUse(const TableKey& key) const {
    const std::vector<int64_t>& uses = uses_.at(key);
    const auto next = std::upper_bound(uses.begin(), uses.end(), step_);
    return next != uses.end() && *next <= last_admitted_ ? *next : -1;
  }
  bool UsedNow(const TableKey& key) const {
    const std::vector<int64_t>& uses = uses_.at(key);
    return std::binary_search(uses.begin(), uses.end(), step_);
  }
  // Whether a row for the key pays.
  bool Wanted(const TableKey& key) const {
    return kept_.count(key.first) != 0 || NextUse(key) >= 0;
  }

  static uint64_t Updated(uint64_t value, int64_t step) { return Mix64(value ^ Mix64(step)); }

  // What a server that has the pushes up to `through` in its row, and no later ones, answers.
  uint64_t ServerValue(const TableKey& key, int64_t through) const {
    uint64_t value = 0;
    const auto pushes = pushes_.find(key);
    if (pushes == pushes_.end()) return value;
    for (const Push& push : pushes->second) {
      if (push.step > through) break;
      value = push.written_back ? push.value : Updated(value, push.step);
    }
    return value;
  }

  void ExpectServerOrder(int32_t t, const CachedKeys& keys) {
    ASSERT_EQ(keys.server_begin.size(), trace_.num_servers + 1);
    ASSERT_EQ(keys.rows.size(), keys.keys.size());
    ASSERT_EQ(keys.server_begin[0], 0);
    ASSERT_EQ(keys.server_begin[trace_.num_servers], keys.size());
    for (uint32_t s = 0; s < trace_.num_servers; ++s) {
      for (int32_t i = keys.server_begin[s]; i < keys.server_begin[s + 1]; ++i) {
        const uint64_t hash = KeyHash(TableSalt(trace_.tables[t]), keys.keys[i]);
        ASSERT_EQ(cluster_.ServerOfHash(hash).value(), s);
      }
    }
  }

  void RunStep(const BatchPlan& batch, const CachePlan& plan) {
    counts_ = CacheCounts();
    const int64_t before_window = step_ - trace_.options.window_steps - 1;
    last_push_ = before_window >= trace_.first.value() ? before_window : -1;
    ASSERT_LT(plan.pushed_through.value(), step_);
    for (size_t g = 0; g < slabs_.size(); ++g) RunGroup(g, batch, plan);
    EXPECT_EQ(plan.no_room_to_keep.table, -1);
    EXPECT_EQ(plan.pushed_through.value(), last_push_);
    EXPECT_EQ(plan.counts.hits, counts_.hits);
    EXPECT_EQ(plan.counts.loaded, counts_.loaded);
    EXPECT_EQ(plan.counts.bypassed, counts_.bypassed);
    EXPECT_EQ(plan.counts.rejected_no_room, counts_.rejected_no_room);
    EXPECT_EQ(plan.counts.evicted, counts_.evicted);
    EXPECT_EQ(plan.counts.rows_held, counts_.rows_held);
    total_.hits += counts_.hits;
    total_.loaded += counts_.loaded;
    total_.rejected_no_room += counts_.rejected_no_room;
    total_.evicted += counts_.evicted;
  }

  void RunGroup(size_t g, const BatchPlan& batch, const CachePlan& plan) {
    const CachePlannerOptions::Group& group = trace_.options.groups[g];
    std::vector<SlabRow>& slab = slabs_[g];
    slab.resize(group.capacity);
    const int64_t rejected_before = counts_.rejected_no_room;
    for (int32_t t : group.tables) Evict(t, plan.tables[t].evicted, &slab);
    int32_t staged = group.capacity;
    for (int32_t t : group.tables) {
      Load(t, plan.tables[t].loaded, group.capacity, &slab, plan.pushed_through);
      Stage(t, batch.tables[t], plan.tables[t], &staged, &slab, plan.pushed_through);
    }
    std::set<int32_t> rows_used;
    for (int32_t t : group.tables) {
      Compute(t, batch.tables[t], plan.tables[t], group.capacity, &slab, &rows_used);
    }
    slab.resize(group.capacity);
    for (const SlabRow& row : slab) {
      counts_.rows_held += row.held ? 1 : 0;
      // Only where every row is needed is a key rejected (no room).
      if (counts_.rejected_no_room > rejected_before) {
        EXPECT_TRUE(row.held && (UsedNow(row.key) || NextUse(row.key) >= 0));
      }
    }
  }

  void ExpectUnneeded(const TableKey& key) {
    EXPECT_FALSE(UsedNow(key)) << "evicted at its use";
    EXPECT_EQ(NextUse(key), -1) << "evicted before its use";
  }

  void Evict(int32_t t, const CachedKeys& evicted, std::vector<SlabRow>* slab) {
    ExpectServerOrder(t, evicted);
    EXPECT_TRUE(kept_.count(t) == 0 || evicted.size() == 0);
    for (int32_t i = 0; i < evicted.size(); ++i) {
      SlabRow& row = slab->at(evicted.rows[i]);
      const TableKey key(t, evicted.keys[i]);
      ASSERT_TRUE(row.held);
      ASSERT_EQ(row.key, key);
      ExpectUnneeded(key);
      pushes_[key].push_back({step_, true, row.value});
      row.held = false;
      ++counts_.evicted;
    }
  }

  SlabRow Pull(const TableKey& key, Step through) {
    if (pushes_.count(key) != 0) {
      // This step may push an evicted key, but no key that is pulled.
      last_push_ = std::max(last_push_, pushes_[key].back().step);
    }
    return {true, key, ServerValue(key, through.value()), step_};
  }

  void Load(int32_t t, const CachedKeys& loaded, int32_t capacity, std::vector<SlabRow>* slab,
            Step through) {
    ExpectServerOrder(t, loaded);
    for (int32_t i = 0; i < loaded.size(); ++i) {
      const TableKey key(t, loaded.keys[i]);
      ASSERT_LT(loaded.rows[i], capacity);
      SlabRow& row = slab->at(loaded.rows[i]);
      ASSERT_FALSE(row.held);
      EXPECT_TRUE(Wanted(key));
      loaded_to_be_kept_ += kept_.count(t);
      row = Pull(key, through);
      ++counts_.loaded;
    }
  }

  void Stage(int32_t t, const TablePlan& table, const TableCachePlan& plan, int32_t* staged,
             std::vector<SlabRow>* slab, Step through) {
    const CachedKeys& bypassed = plan.bypassed;
    ExpectServerOrder(t, bypassed);
    EXPECT_TRUE(kept_.count(t) == 0 || bypassed.size() == 0);
    ASSERT_EQ(plan.bypassed_positions.size(), bypassed.keys.size());
    for (int32_t i = 0; i < bypassed.size(); ++i) {
      ASSERT_EQ(bypassed.rows[i], (*staged)++);
      ASSERT_EQ(table.keys[plan.bypassed_positions[i]], bypassed.keys[i]);
      ASSERT_EQ(plan.rows[plan.bypassed_positions[i]], bypassed.rows[i]);
      const TableKey key(t, bypassed.keys[i]);
      for (const SlabRow& row : *slab) ASSERT_FALSE(row.held && row.key == key);
      slab->push_back(Pull(key, through));
      ++counts_.bypassed;
      counts_.rejected_no_room += Wanted(key) ? 1 : 0;
    }
  }

  void Compute(int32_t t, const TablePlan& table, const TableCachePlan& plan, int32_t capacity,
               std::vector<SlabRow>* slab, std::set<int32_t>* rows_used) {
    ASSERT_EQ(plan.rows.size(), table.keys.size());
    for (int32_t u = 0; u < table.num_unique(); ++u) {
      const TableKey key(t, table.keys[u]);
      SlabRow& row = slab->at(plan.rows[u]);
      ASSERT_TRUE(rows_used->insert(plan.rows[u]).second);
      ASSERT_TRUE(row.held);
      ASSERT_EQ(row.key, key);
      counts_.hits += row.pulled < step_ ? 1 : 0;
      ASSERT_EQ(row.value, newest_[key]) << "an update is missing";
      newest_[key] = Updated(newest_[key], step_);
      row.value = Updated(row.value, step_);
      if (plan.rows[u] >= capacity) pushes_[key].push_back({step_, false, 0});
    }
  }

  // As at a cut.
  void WriteBackHeld() {
    for (const std::vector<SlabRow>& slab : slabs_) {
      for (const SlabRow& row : slab) {
        if (row.held) pushes_[row.key].push_back({step_, true, row.value});
      }
    }
  }

  void ExpectTheSame(const CachePlan& a, const CachePlan& b) {
    for (size_t t = 0; t < a.tables.size(); ++t) {
      EXPECT_EQ(a.tables[t].rows, b.tables[t].rows);
      EXPECT_EQ(a.tables[t].evicted.rows, b.tables[t].evicted.rows);
      EXPECT_EQ(a.tables[t].evicted.keys, b.tables[t].evicted.keys);
    }
  }

  void ExpectBoundedMemory() {
    std::set<TableKey> remembered;
    for (const auto& [key, steps] : uses_) {
      if (NextUse(key) >= 0) remembered.insert(key);
    }
    for (const std::vector<SlabRow>& slab : slabs_) {
      for (const SlabRow& row : slab) {
        if (row.held) remembered.insert(row.key);
      }
    }
    EXPECT_EQ(planner_.num_entries(), remembered.size());
  }

  const PlannerTrace& trace_;
  const ClusterMap cluster_;
  ThreadPool one_thread_{1};
  CachePlanner planner_;
  CachePlanner twin_;  // given the same, on the same thread or others: plans the same
  std::vector<CachePlan> plans_;
  std::vector<CachePlan> twins_;
  std::vector<std::vector<SlabRow>> slabs_;
  std::map<TableKey, std::vector<int64_t>> uses_;
  std::map<TableKey, std::vector<Push>> pushes_;
  std::map<TableKey, uint64_t> newest_;
  int64_t step_ = 0;
  int64_t last_admitted_ = 0;
  int64_t last_push_ = -1;  // of a key pulled at this step, and the bound where none is later
  CacheCounts counts_;
  CacheCounts total_;
  std::set<int32_t> kept_;  // tables whose rows are
  size_t loaded_to_be_kept_ = 0;
};

TEST(CachePlannerTest, PlansCarriedOutLoseNoUpdate) {
  std::mt19937_64 random(TestSeed());
  ThreadPool one_thread(1), three_threads(3);
  CacheCounts total;
  int loaded_to_be_kept = 0;
  for (int i = 0; i < RandomRuns(6000); ++i) {
    const PlannerTrace trace = TraceMaker(&random).Make(/*large=*/i % 300 == 299);
    SCOPED_TRACE("trace " + std::to_string(i));
    TraceRunner runner(trace, i % 8 == 0 ? &three_threads : &one_thread);
    runner.Run(&random);
    if (HasFailure()) return;
    loaded_to_be_kept += static_cast<int>(runner.loaded_to_be_kept());
    total.hits += runner.total().hits;
    total.loaded += runner.total().loaded;
    total.rejected_no_room += runner.total().rejected_no_room;
    total.evicted += runner.total().evicted;
  }
  // Nothing above was idle.
  EXPECT_GT(total.hits, RandomRuns(10000));
  EXPECT_GT(total.loaded, RandomRuns(10000));
  EXPECT_GT(total.rejected_no_room, RandomRuns(1000));
  EXPECT_GT(total.evicted, RandomRuns(1000));
  EXPECT_GT(loaded_to_be_kept, RandomRuns(10000));
}

// Keys [first, end) of table 0, all of one server.
BatchPlan BatchOf(Key first, Key end) {
  BatchPlan batch;
  TablePlan& table = batch.tables.emplace_back();
  table.id = TableId(0);
  for (Key key = first; key < end; ++key) table.keys.push_back(key);
  table.server_begin = {0, table.num_unique()};
  return batch;
}

TEST(CachePlannerTest, TellsWhenAKeptRowFindsNoRoom) {
  CachePlannerOptions options;
  options.groups = {{{0}, 10, /*keeps_rows=*/true}};
  options.window_steps = 1;
  ThreadPool thread(1);
  CachePlanner planner(options, ClusterMap(1), {TableId(0)}, &thread);
  // Each key is used once; 4, 8, 10 and 13 different ones.
  const std::vector<BatchPlan> batches = {BatchOf(0, 4), BatchOf(4, 8), BatchOf(8, 10),
                                          BatchOf(9, 13)};
  std::vector<CachePlan> plans(batches.size());
  for (size_t b = 0; b < batches.size(); ++b) {
    ASSERT_TRUE(planner.Admit(Step(b), SharesOf(batches[b]), &plans[b]).ok());
  }
  for (size_t b = 0; b < 3; ++b) {
    planner.Plan(Step(b), SharesOf(batches[b]), &plans[b]);
    EXPECT_EQ(plans[b].no_room_to_keep.table, -1);
    EXPECT_EQ(plans[b].counts.loaded, batches[b].tables[0].num_unique());
  }
  EXPECT_EQ(plans[2].counts.rows_held, 10);
  EXPECT_EQ(plans[2].counts.rows_kept, 10);
  planner.Plan(Step(3), SharesOf(batches[3]), &plans[3]);
  EXPECT_EQ(plans[3].counts.hits, 1);
  EXPECT_EQ(plans[3].no_room_to_keep.table, 0);
  EXPECT_EQ(plans[3].no_room_to_keep.rows, 13);
}

TEST(CachePlannerTest, StepsAndKeysBeyondItsNumbersAreErrors) {
  CachePlannerOptions options;
  options.groups = {{{0}, 10}};
  options.max_entries = 6;
  ThreadPool thread(1);
  CachePlanner planner(options, ClusterMap(1), {TableId(0)}, &thread);
  const BatchPlan four = BatchOf(0, 4), three = BatchOf(4, 7);
  CachePlan plans[2];
  ASSERT_TRUE(planner.Admit(kLastCachedStep - 1, SharesOf(four), &plans[0]).ok());
  const absl::Status too_many = planner.Admit(kLastCachedStep, SharesOf(three), &plans[1]);
  EXPECT_EQ(too_many.code(), absl::StatusCode::kResourceExhausted) << too_many;
  EXPECT_EQ(planner.Admit(kLastCachedStep + 1, SharesOf(three), &plans[1]).code(),
            absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace thermocline
