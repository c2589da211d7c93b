// One logical cache over all workers, on random traces: every key has an owner among the ranks, who
// plans over what all ranks ask for, merges their gradients and updates the rows that it holds. The
// rows that it does not hold each rank pulls and pushes itself. Some traces go on, from a
// checkpoint, with another number of ranks. Every row that a rank reads, and what the servers have
// after a checkpoint, is compared with a plain map whose rows get the servers' own merge.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "common/base/thread_pool.h"
#include "common/math/gradient_merge.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"
#include "worker/plan/requested_keys.h"
#include "worker/rows/cache_planner.h"

namespace thermocline {
namespace {

using Row = std::vector<float>;  // [dim]
using TableKey = std::pair<int32_t, Key>;
using Rows = std::map<TableKey, Row>;

// What a rank asks one owner for in a step; the gradients that it sends back.
struct Asked {
  std::vector<Key> keys;
  std::vector<uint32_t> counts;
  std::vector<float> gradients;  // [keys, dim]
};

struct SharedTrace {
  uint32_t num_ranks = 1;
  uint32_t num_servers = 1;
  int window_steps = 1;
  int capacity = 0;  // rows of each owner
  int dim = 1;
  int num_tables = 1;
  int64_t first_step = 0;
  int64_t num_steps = 1;
  // asked[step - first_step][owner][table][rank]
  std::vector<std::vector<std::vector<std::vector<Asked>>>> asked;
};

// Faults of an owner, which the test must find.
enum class Planted {
  kNone,
  kOwnGradientsLast,  // adds its own gradients behind those of the other ranks
  kOrderOfArrival,    // adds the ranks' gradients as they come
  kEvictedLost,       // evicts rows without writing them back
  kEvictedEarly,  // writes evicted rows back as they were before the gradients of the step before
  kEarlyPulls,    // does not wait for the last push that must be in the rows it pulls
};

float Initial(const TableKey& key) {
  return static_cast<float>(Mix64(key.second ^ key.first) % 1000) / 7.0f;
}
// Whatever is wrong with a row, or with a sum, stays in it.
void Update(absl::Span<const float> gradient, Row* row) {
  for (size_t d = 0; d < row->size(); ++d) (*row)[d] = (*row)[d] * 0.75f + gradient[d];
}
float Gradient(float weight, uint32_t rank, int64_t step, size_t d) {
  const uint64_t noise = Mix64(Mix64(rank * 1000 + d) ^ step);
  return weight / 3.0f + static_cast<float>(noise % 2001) / 7.0f - 100.0f;
}

class TraceMaker {
 public:
  explicit TraceMaker(std::mt19937_64* random) : random_(*random) {}

  SharedTrace Make() {
    SharedTrace trace;
    trace.num_servers = Draw(1, 3);
    trace.dim = Draw(1, 3);
    trace.num_tables = Draw(1, 2);
    return Draw(trace);
  }
  // The same job with other workers, from the end of `before` on.
  SharedTrace MakeNext(const SharedTrace& before) {
    SharedTrace trace = before;
    trace.first_step += before.num_steps;
    trace.asked.clear();
    return Draw(trace);
  }

 private:
  SharedTrace Draw(SharedTrace trace) {
    trace.num_ranks = std::vector<uint32_t>{1, 2, 3, 5, 8}[Draw(0, 4)];
    trace.window_steps = Draw(1, 8);
    trace.capacity = Draw(0, 12);
    trace.num_steps = Draw(1, 24);
    const int key_space = Draw(1, 40), most_keys = Draw(1, 12);
    const ClusterMap owners(trace.num_ranks);
    trace.asked.resize(trace.num_steps);
    for (auto& step : trace.asked) {
      step.resize(trace.num_ranks);
      for (auto& owner : step) {
        owner.resize(trace.num_tables);
        for (auto& table : owner) table.resize(trace.num_ranks);
      }
      for (uint32_t rank = 0; rank < trace.num_ranks; ++rank) {
        for (int32_t t = 0; t < trace.num_tables; ++t) {
          std::set<Key> drawn;  // A rank's slice may be empty.
          for (int i = Draw(0, most_keys); i > 0; --i) {
            drawn.insert(std::min(Draw(0, key_space - 1), Draw(0, key_space - 1)));
          }
          std::vector<Key> keys(drawn.begin(), drawn.end());
          std::shuffle(keys.begin(), keys.end(), random_);
          for (const Key key : keys) {
            const uint64_t hash = KeyHash(TableSalt(TableId(t)), key);
            Asked& asked = step[owners.ServerOfHash(hash).value()][t][rank];
            asked.keys.push_back(key);
            asked.counts.push_back(Draw(1, 3));
          }
        }
      }
    }
    return trace;
  }

  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  std::mt19937_64& random_;
};

// All servers: every state that a row had, by step. A pull gets the oldest that it allows.
class Servers {
 public:
  explicit Servers(int dim) : dim_(dim) {}

  Row Read(const TableKey& key, Step through) const {
    Row row(dim_, Initial(key));
    const auto states = states_.find(key);
    if (states == states_.end()) return row;
    for (const auto& [step, state] : states->second) {
      if (step <= through.value()) row = state;
    }
    return row;
  }
  void Assign(const TableKey& key, int64_t step, const Row& row) { states_[key][step] = row; }
  void Apply(const TableKey& key, int64_t step, absl::Span<const float> gradient) {
    Row row = Read(key, Step(step));
    Update(gradient, &row);
    Assign(key, step, row);
  }

 private:
  const int dim_;
  std::map<TableKey, std::map<int64_t, Row>> states_;
};

// One worker as the owner of its share of the keys.
class Owner {
 public:
  Owner(const SharedTrace& trace, uint32_t rank, Planted planted, Servers* servers,
        ThreadPool* threads)
      : trace_(trace),
        rank_(rank),
        planted_(planted),
        servers_(servers),
        requests_(WorkerRank(rank), trace.num_ranks, ClusterMap(trace.num_servers)),
        planner_(OptionsOf(trace), ClusterMap(trace.num_servers), TablesOf(trace), threads),
        steps_(trace.num_steps),
        slab_(trace.capacity),
        slab_before_(trace.capacity) {}

  // Plans the step, with the window's keys, and brings the rows that it holds. i: of the trace.
  void Begin(int64_t i) {
    for (; admitted_ < std::min(i + trace_.window_steps + 1, trace_.num_steps); ++admitted_) {
      Admit(admitted_);
    }
    StepRecord& at = steps_[i];
    planner_.Plan(StepOf(i), SharesOfAll(at), &at.plan);
    KeepHeld(&at);
    const int late = planted_ == Planted::kEarlyPulls ? 1 : 0;
    at.pushed_through = std::max(at.plan.pushed_through, Step(trace_.first_step - 1)) - late;
    Evict(i);
    for (int32_t t = 0; t < trace_.num_tables; ++t) {
      const CachedKeys& loaded = at.plan.tables[t].loaded;
      for (int32_t k = 0; k < loaded.size(); ++k) {
        slab_[loaded.rows[k]] = servers_->Read({t, loaded.keys[k]}, at.pushed_through);
        held_[loaded.rows[k]] = {t, loaded.keys[k]};
      }
    }
  }

  // Whether it holds the n-th key that `rank` asked for, and its row.
  bool Holds(int64_t i, int32_t t, uint32_t rank, size_t n) const {
    return steps_[i].is_held[t][steps_[i].all_positions[t][rank][n]] != 0;
  }
  // The row of the n-th key that `rank` asked for, which is held.
  const Row& RowFor(int64_t i, int32_t t, uint32_t rank, size_t n) const {
    const StepRecord& at = steps_[i];
    return slab_[at.held_rows[t][at.requested[t].positions[rank][n]]];
  }
  Step pushed_through(int64_t i) const { return steps_[i].pushed_through; }

  // gradients[t][rank]: of the keys held that the rank asked for.
  void End(int64_t i, const std::vector<std::vector<std::vector<float>>>& gradients) {
    const StepRecord& at = steps_[i];
    slab_before_ = slab_;
    for (int32_t t = 0; t < trace_.num_tables; ++t) {
      std::vector<float> merged(at.requested[t].keys.size() * trace_.dim);
      Merge(i, at.requested[t], gradients[t], absl::MakeSpan(merged));
      for (int32_t u = 0; u < at.requested[t].num_unique(); ++u) {
        Update(absl::MakeConstSpan(merged).subspan(u * trace_.dim, trace_.dim),
               &slab_[at.held_rows[t][u]]);
      }
    }
  }

  void WriteBack(int64_t i) {
    for (const auto& [row, key] : held_) servers_->Assign(key, StepOf(i).value(), slab_[row]);
  }
  const CacheCounts& counts(int64_t i) const { return steps_[i].plan.counts; }

 private:
  struct StepRecord {
    std::vector<RequestedKeys> requested;  // [tables]; once planned: of those held
    std::vector<std::vector<UninitializedVector<int32_t>>> all_positions;  // [tables][ranks]
    std::vector<std::vector<uint8_t>> is_held;                             // [tables] of all
    std::vector<std::vector<int32_t>> held_rows;                           // [tables] of those held
    CachePlan plan;
    Step pushed_through;
  };

  Step StepOf(int64_t i) const { return Step(trace_.first_step + i); }
  static CachePlannerOptions OptionsOf(const SharedTrace& trace) {
    CachePlannerOptions options;
    options.groups.resize(1);
    for (int32_t t = 0; t < trace.num_tables; ++t) options.groups[0].tables.push_back(t);
    options.groups[0].capacity = trace.capacity;
    options.window_steps = trace.window_steps;
    return options;
  }
  static std::vector<TableId> TablesOf(const SharedTrace& trace) {
    std::vector<TableId> tables;
    for (int t = 0; t < trace.num_tables; ++t) tables.push_back(TableId(t));
    return tables;
  }
  static std::vector<KeyShares> SharesOfAll(const StepRecord& at) {
    std::vector<KeyShares> shares;
    for (const RequestedKeys& keys : at.requested) shares.push_back(SharesOf(keys.id, keys));
    return shares;
  }

  void Admit(int64_t i) {
    StepRecord& at = steps_[i];
    at.requested.resize(trace_.num_tables);
    for (int32_t t = 0; t < trace_.num_tables; ++t) {
      std::vector<KeyRequest> requests;
      for (const Asked& asked : trace_.asked[i][rank_][t]) {
        requests.push_back({asked.keys, asked.counts});
      }
      ASSERT_TRUE(requests_.Plan(TableId(t), requests, &at.requested[t]).ok());
      at.all_positions.push_back(at.requested[t].positions);
    }
    ASSERT_TRUE(planner_.Admit(StepOf(i), SharesOfAll(at), &at.plan).ok());
  }

  void KeepHeld(StepRecord* at) const {
    for (int32_t t = 0; t < trace_.num_tables; ++t) {
      std::vector<uint8_t>& is_held = at->is_held.emplace_back();
      std::vector<int32_t>& held_rows = at->held_rows.emplace_back();
      for (const int32_t row : at->plan.tables[t].rows) {
        is_held.push_back(row < trace_.capacity ? 1 : 0);
        if (is_held.back() != 0) held_rows.push_back(row);
      }
      RetainKeys(is_held, &at->requested[t]);
    }
  }

  void Evict(int64_t i) {
    for (int32_t t = 0; t < trace_.num_tables; ++t) {
      const CachedKeys& evicted = steps_[i].plan.tables[t].evicted;
      for (int32_t k = 0; k < evicted.size(); ++k) {
        const int32_t row = evicted.rows[k];
        const TableKey key(t, evicted.keys[k]);
        ASSERT_EQ(held_.at(row), key);
        held_.erase(row);
        if (planted_ == Planted::kEvictedLost) continue;
        const bool early = planted_ == Planted::kEvictedEarly;
        servers_->Assign(key, StepOf(i).value(), early ? slab_before_[row] : slab_[row]);
      }
    }
  }

  void Merge(int64_t i, const RequestedKeys& requested,
             const std::vector<std::vector<float>>& gradients, absl::Span<float> merged) const {
    std::vector<uint32_t> order(trace_.num_ranks);
    std::iota(order.begin(), order.end(), 0);
    if (planted_ == Planted::kOwnGradientsLast) {
      std::rotate(order.begin() + rank_, order.begin() + rank_ + 1, order.end());
    } else if (planted_ == Planted::kOrderOfArrival) {
      std::mt19937_64 arrivals(i);
      std::shuffle(order.begin(), order.end(), arrivals);
    } else {
      const std::vector<absl::Span<const float>> of_ranks(gradients.begin(), gradients.end());
      return MergeRequested(requested, of_ranks, trace_.dim, merged);
    }
    std::vector<bool> is_there(requested.keys.size());
    for (const uint32_t rank : order) {
      const auto& positions = requested.positions[rank];
      for (size_t n = 0; n < positions.size(); ++n) {
        MergeGradient(!is_there[positions[n]], gradients[rank].data() + n * trace_.dim, trace_.dim,
                      merged.data() + positions[n] * trace_.dim);
        is_there[positions[n]] = true;
      }
    }
  }

  const SharedTrace& trace_;
  const uint32_t rank_;
  const Planted planted_;
  Servers* const servers_;
  RequestPlanner requests_;
  CachePlanner planner_;
  int64_t admitted_ = 0;
  std::vector<StepRecord> steps_;
  std::vector<Row> slab_;         // [capacity]
  std::vector<Row> slab_before_;  // Before the last step's gradients.
  std::map<int32_t, TableKey> held_;
};

// What stays when workers come and go.
struct World {
  Servers servers;
  Rows expected;
};

// Runs a trace; says what is wrong first, or nothing. Its last step has a checkpoint.
class TraceRunner {
 public:
  TraceRunner(const SharedTrace& trace, Planted planted, World* world)
      : trace_(trace), world_(*world), random_(trace.num_steps) {
    for (uint32_t rank = 0; rank < trace.num_ranks; ++rank) {
      // One owner is enough for a fault.
      const Planted its = rank == 0 ? planted : Planted::kNone;
      owners_.push_back(std::make_unique<Owner>(trace_, rank, its, &world_.servers, &threads_));
    }
  }

  std::string Run() {
    for (int64_t i = 0; i < trace_.num_steps; ++i) {
      for (const auto& owner : owners_) owner->Begin(i);
      std::string wrong = ComputeAll(i);
      if (!wrong.empty()) return wrong;
      EndAll(i);
      ApplyExpected(i);
      for (const auto& owner : owners_) AddCounts(owner->counts(i));
      const bool is_last = i + 1 == trace_.num_steps;
      if (!is_last && random_() % 6 != 0) continue;
      for (const auto& owner : owners_) owner->WriteBack(i);
      wrong = CompareServers(i);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }
  const CacheCounts& total() const { return total_; }

 private:
  int64_t StepOf(int64_t i) const { return trace_.first_step + i; }
  Row& Expected(const TableKey& key) {
    return world_.expected.emplace(key, Row(trace_.dim, Initial(key))).first->second;
  }

  // Every rank reads its rows and makes gradients of them.
  std::string ComputeAll(int64_t i) {
    Step pushed_through = kNoStep;
    for (const auto& owner : owners_) {
      pushed_through = std::max(pushed_through, owner->pushed_through(i));
    }
    for (uint32_t rank = 0; rank < trace_.num_ranks; ++rank) {
      for (uint32_t o = 0; o < trace_.num_ranks; ++o) {
        for (int32_t t = 0; t < trace_.num_tables; ++t) {
          Asked& asked = trace_.asked[i][o][t][rank];
          size_t held = 0;
          for (size_t n = 0; n < asked.keys.size(); ++n) {
            const TableKey key(t, asked.keys[n]);
            const Row row = owners_[o]->Holds(i, t, rank, n)
                                ? owners_[o]->RowFor(i, t, rank, held++)
                                : world_.servers.Read(key, pushed_through);
            if (row != Expected(key)) {
              return "step " + std::to_string(StepOf(i)) + ": a row is wrong";
            }
            for (size_t d = 0; d < row.size(); ++d) {
              asked.gradients.push_back(Gradient(row[d], rank, StepOf(i), d));
            }
          }
        }
      }
    }
    return "";
  }

  // Gradients of rows held go to their owners, the others to the servers.
  void EndAll(int64_t i) {
    std::vector<std::vector<Asked>> pushed(trace_.num_tables, std::vector<Asked>(trace_.num_ranks));
    for (uint32_t o = 0; o < trace_.num_ranks; ++o) {
      std::vector<std::vector<std::vector<float>>> sent(
          trace_.num_tables, std::vector<std::vector<float>>(trace_.num_ranks));
      for (int32_t t = 0; t < trace_.num_tables; ++t) {
        for (uint32_t rank = 0; rank < trace_.num_ranks; ++rank) {
          const Asked& asked = trace_.asked[i][o][t][rank];
          for (size_t n = 0; n < asked.keys.size(); ++n) {
            const bool held = owners_[o]->Holds(i, t, rank, n);
            std::vector<float>& to = held ? sent[t][rank] : pushed[t][rank].gradients;
            const auto gradient = asked.gradients.begin() + n * trace_.dim;
            to.insert(to.end(), gradient, gradient + trace_.dim);
            if (held) continue;
            pushed[t][rank].keys.push_back(asked.keys[n]);
            pushed[t][rank].counts.push_back(asked.counts[n]);
          }
        }
      }
      owners_[o]->End(i, sent);
    }
    for (int32_t t = 0; t < trace_.num_tables; ++t) {
      std::vector<GradientBlock> blocks;  // in rank order
      for (const Asked& of_rank : pushed[t]) {
        blocks.push_back({of_rank.keys, of_rank.counts, of_rank.gradients});
      }
      merge_.Run(blocks, trace_.dim);
      const GradientBlock& merged = merge_.result();
      for (size_t k = 0; k < merged.keys.size(); ++k) {
        world_.servers.Apply({t, merged.keys[k]}, StepOf(i),
                             merged.gradients.subspan(k * trace_.dim, trace_.dim));
      }
    }
  }

  void ApplyExpected(int64_t i) {
    for (int32_t t = 0; t < trace_.num_tables; ++t) {
      std::vector<GradientBlock> blocks;  // in rank order
      for (uint32_t rank = 0; rank < trace_.num_ranks; ++rank) {
        for (uint32_t o = 0; o < trace_.num_ranks; ++o) {
          const Asked& asked = trace_.asked[i][o][t][rank];
          blocks.push_back({asked.keys, asked.counts, asked.gradients});
        }
      }
      merge_.Run(blocks, trace_.dim);
      const GradientBlock& merged = merge_.result();
      for (size_t k = 0; k < merged.keys.size(); ++k) {
        Update(merged.gradients.subspan(k * trace_.dim, trace_.dim),
               &Expected({t, merged.keys[k]}));
      }
    }
  }

  std::string CompareServers(int64_t i) const {
    for (const auto& [key, row] : world_.expected) {
      if (world_.servers.Read(key, Step(StepOf(i))) != row) {
        return "after step " + std::to_string(StepOf(i)) + " the servers' row is wrong";
      }
    }
    return "";
  }

  void AddCounts(const CacheCounts& counts) {
    total_.hits += counts.hits;
    total_.loaded += counts.loaded;
    total_.bypassed += counts.bypassed;
    total_.evicted += counts.evicted;
    total_.rejected_no_room += counts.rejected_no_room;
  }

  SharedTrace trace_;
  World& world_;
  ThreadPool threads_{1};
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Owner>> owners_;
  GradientMerge merge_;
  CacheCounts total_;
};

TEST(SharedCacheTest, RanksReadTheRowsOfOneMap) {
  std::mt19937_64 random(TestSeed());
  std::map<uint32_t, CacheCounts> totals;  // by number of ranks
  for (int i = 0; i < RandomRuns(1000); ++i) {
    SCOPED_TRACE("trace " + std::to_string(i));
    TraceMaker maker(&random);
    SharedTrace trace = maker.Make();
    World world{Servers(trace.dim), {}};
    for (int runs = 1 + i % 2; runs > 0; --runs) {
      TraceRunner runner(trace, Planted::kNone, &world);
      ASSERT_EQ(runner.Run(), "") << trace.num_ranks << " ranks";
      ASSERT_FALSE(HasFailure());
      CacheCounts& total = totals[trace.num_ranks];
      total.hits += runner.total().hits;
      total.bypassed += runner.total().bypassed;
      total.evicted += runner.total().evicted;
      total.rejected_no_room += runner.total().rejected_no_room;
      trace = maker.MakeNext(trace);
    }
  }
  // Nothing above was idle. Few traces have eight ranks, and sanitizers make a sixth of all: there
  // 17 evictions have been seen.
  for (const auto& [num_ranks, total] : totals) {
    EXPECT_GT(total.hits, RandomRuns(1000)) << num_ranks;
    EXPECT_GT(total.bypassed, RandomRuns(1000)) << num_ranks;
    EXPECT_GT(total.evicted, RandomRuns(25)) << num_ranks;
    EXPECT_GT(total.rejected_no_room, RandomRuns(25)) << num_ranks;
  }
}

TEST(SharedCacheTest, FindsPlantedFaults) {
  std::mt19937_64 random(TestSeed());
  for (const Planted planted :
       {Planted::kOwnGradientsLast, Planted::kOrderOfArrival, Planted::kEvictedLost,
        Planted::kEvictedEarly, Planted::kEarlyPulls}) {
    int found = 0;
    for (int i = 0; i < 300; ++i) {
      const SharedTrace trace = TraceMaker(&random).Make();
      World world{Servers(trace.dim), {}};
      found += TraceRunner(trace, planted, &world).Run().empty() ? 0 : 1;
    }
    EXPECT_GT(found, 10) << static_cast<int>(planted);
  }
}

}  // namespace
}  // namespace thermocline
