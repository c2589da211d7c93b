#include "tests/training/small_job.h"

#include <cstdio>
#include <fstream>
#include <random>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/text.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "gtest/gtest.h"
#include "tests/training/in_process_transport.h"
#include "worker/exchange/testing/local_exchange.h"

namespace thermocline {
namespace {

std::string WriteClickLog(int rows) {
  const std::string path = testing::TempDir() + "/clicks.tsv";
  std::ofstream file(path);
  std::mt19937 random(5);
  const auto key = [&] { return (random() % 40) * (random() % 40); };
  for (int i = 0; i < rows; ++i) {
    file << random() % 2 << '\t' << random() % 100 << '\t';
    if (random() % 4 != 0) file << random() % 1000;
    for (int feature = 0; feature < 3; ++feature) {
      file << '\t';
      const int lookups = random() % 4;
      for (int j = 0; j < lookups; ++j) file << (j > 0 ? "," : "") << std::hex << key() << std::dec;
    }
    file << '\n';
  }
  return path;
}

// Each column has at most one lookup.
std::string WriteColumns(int rows, int num_dense, int num_categorical) {
  const std::string path =
      absl::StrCat(testing::TempDir(), "/columns-", num_dense, "-", num_categorical, ".tsv");
  std::ofstream file(path);
  std::mt19937 random(6);
  for (int i = 0; i < rows; ++i) {
    file << random() % 2;
    for (int c = 0; c < num_dense; ++c) file << '\t' << random() % 100;
    for (int c = 0; c < num_categorical; ++c) file << '\t' << (random() % 10) * (random() % 10);
    file << '\n';
  }
  return path;
}

// Lists have 0 to 4 ids, and as many numbers. A third of the rows have no label "z",
// and all have no label "none".
std::string WriteWeightedLists(int rows) {
  const std::string path = testing::TempDir() + "/weighted.csv";
  std::ofstream file(path);
  std::mt19937 random(8);
  std::mt19937 random_label(9);
  file << "y,x,a,wa,b,wb,c,z,none\n";
  for (int i = 0; i < rows; ++i) {
    file << random() % 2 << ',' << random() % 100;
    for (int list = 0; list < 3; ++list) {
      std::string ids, weights;
      for (uint32_t left = random() % 5; left > 0; --left) {
        const char* const end = left > 1 ? "|" : "";
        absl::StrAppend(&ids, (random() % 30) * (random() % 30), end);
        absl::StrAppend(&weights, (random() % 40) * 0.25, end);
      }
      file << ',' << ids;
      if (list < 2) file << ',' << weights;
    }
    const char* const labels[] = {"0", "1", ""};
    file << ',' << labels[random_label() % 3] << ",\n";
  }
  return path;
}

// Rows with histories of 0 to 6 items and their kinds, or of those that kGrowing says.
std::string WriteHistories(int rows, Histories histories) {
  const bool is_growing = histories == Histories::kGrowing;
  const std::string path =
      absl::StrCat(testing::TempDir(), is_growing ? "/growing.csv" : "/histories.csv");
  std::ofstream file(path);
  std::mt19937_64 random(21);
  file << "y,x,item,kind,items,kinds\n";
  const auto item = [&random] { return (random() % 20) * (random() % 20); };
  for (int i = 0; i < rows; ++i) {
    const uint64_t own = item();
    std::string items, kinds;
    uint64_t left = random() % 7;
    if (is_growing && i / 100 == 4) left = 0;
    if (is_growing && i / 200 == 4) left += 10;
    for (; left > 0; --left) {
      const uint64_t before = item();
      const char* const end = left > 1 ? "|" : "";
      absl::StrAppend(&items, before, end);
      absl::StrAppend(&kinds, before % 7, end);
    }
    file << random() % 2 << ',' << random() % 100 << ',' << own << ',' << own % 7 << ',' << items
         << ',' << kinds << '\n';
  }
  return path;
}

// Makes all ranks' exchanges once every rank has asked for its own. No rank ends before it asks.
class ExchangeMeeting {
 public:
  ExchangeMeeting(uint32_t num_ranks, Scheduler* scheduler)
      : scheduler_(scheduler), hooks_(num_ranks), exchanges_(num_ranks) {}

  std::unique_ptr<Exchange> Join(const ExchangeOptions& options, ExchangeHooks hooks) {
    absl::MutexLock lock(&mutex_);
    hooks_[options.rank.value()] = std::move(hooks);
    if (++joined_ == hooks_.size()) {
      exchanges_ = MakeLocalExchanges(
          options.num_ranks, options, scheduler_,
          [&](WorkerRank rank) ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return hooks_[rank.value()]; });
    }
    const auto all_joined = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return joined_ == hooks_.size();
    };
    mutex_.Await(absl::Condition(&all_joined));
    return std::move(exchanges_[options.rank.value()]);
  }

 private:
  Scheduler* const scheduler_;
  absl::Mutex mutex_;
  size_t joined_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<ExchangeHooks> hooks_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Exchange>> exchanges_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

Job MakeWeightedJob(const std::string& optimizer, const std::vector<std::string>& overrides) {
  const std::string text = absl::StrCat(R"(
    name: "weighted" seed: 11
    data { train { path: ")",
                                        WriteWeightedLists(1500), R"(" csv { header: true } }
           split { last_share: 0.2 } label { column: "y" } }
    default_table { dim: 8 optimizer { )",
                                        optimizer, R"( } }
    table { name: "shared" }
    feature { column: "x" numeric { transform { log1p {} } } }
    feature { column: "a" categorical { separator: "|" weights: "wa" missing: NO_KEY } }
    feature { column: "b" table: "shared" pooling: MEAN
              categorical { separator: "|" weights: "wb" } }
    feature { column: "c" table: "shared" pooling: MEAN categorical { separator: "|" } }
    dlrm { bottom: [24, 12] top: [40, 16] }
    train { batch_size: 100 learning_rate { base: 0.05 } eval_batch_size: 64 }
    cluster { worker_threads: 1 }
  )");
  absl::StatusOr<Job> job = ParseJob(text, "weighted.textproto", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

Job MakeSequenceJob(const std::string& model, const std::vector<std::string>& overrides,
                    Histories histories) {
  const std::string list = absl::StrCat("categorical { id: INTEGER } sequence { max_length: ",
                                        histories == Histories::kGrowing ? 14 : 4, " }");
  const std::string text = absl::StrCat(R"(
    name: "sequences" seed: 11
    data { train { path: ")",
                                        WriteHistories(1500, histories),
                                        R"(" csv { header: true } }
           split { last_share: 0.2 } label { column: "y" } }
    default_table { dim: 8 }
    feature { column: "x" numeric { transform { log1p {} } } }
    feature { column: ["item", "kind"] categorical { id: INTEGER } }
    feature { column: "items" table: "item" )",
                                        list, R"( }
    feature { column: "kinds" table: "kind" )",
                                        list, R"( }
    sequence { name: "past" of: ["items", "kinds"] then: ["item", "kind"] }
    train { batch_size: 100 learning_rate { base: 0.05 } eval_batch_size: 64 }
    cluster { worker_threads: 1 }
  )",
                                        model);
  absl::StatusOr<Job> job = ParseJob(text, "sequences.textproto", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

Job MakeJobOfTasks(const std::vector<std::string>& overrides, const std::string& label) {
  const std::string text = absl::StrCat(R"(
    name: "tasks" seed: 11
    data { train { path: ")",
                                        WriteWeightedLists(1500), R"(" csv { header: true } }
           split { last_share: 0.2 } label { column: ["y", "z", "none"] may_be_missing: true } }
    default_table { dim: 8 }
    feature { column: "x" numeric { transform { log1p {} } } }
    feature { column: ["a", "c"] categorical { separator: "|" missing: NO_KEY } }
    layer { name: "deep" input: ["numeric", "categorical"] mlp { units: [24, 12] dropout: 0.1 } }
    task { label: "y" input: "deep" }
    task { label: ")",
                                        label, R"(" input: ["deep", "a"] weight: 0.5 times: "y" }
    train { batch_size: 100 learning_rate { base: 0.05 } eval_batch_size: 64 }
    cluster { worker_threads: 1 }
  )");
  absl::StatusOr<Job> job = ParseJob(text, "tasks.textproto", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

Job MakeJobOfColumns(int num_dense, int num_categorical, const std::vector<std::string>& overrides,
                     const std::vector<std::string>& cleared) {
  const std::string text = absl::StrCat(
      R"(name: "columns" seed: 11 data { format: CRITEO_TSV path: ")",
      WriteColumns(1500, num_dense, num_categorical), R"(" test_share: 0.2 num_dense: )", num_dense,
      " num_categorical: ", num_categorical, R"( }
    default_table { dim: 8 }
    dlrm { )",
      num_dense > 0 ? "bottom: [24, 12]" : "", R"( top: [40, 16] }
    train { batch_size: 100 learning_rate { base: 0.05 } eval_batch_size: 64 }
    cluster { worker_threads: 1 }
  )");
  absl::StatusOr<Job> job = ParseJob(text, "columns.textproto", overrides, cleared);
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

Job MakeSmallJob(const std::string& optimizer, const std::vector<std::string>& overrides,
                 const std::vector<std::string>& cleared) {
  const std::string text = R"(
    name: "digest" seed: 11
    data { format: CRITEO_TSV path: ")" +
                           WriteClickLog(1500) + R"(" test_share: 0.2 num_dense: 2 }
    default_table { dim: 8 optimizer { )" +
                           optimizer + R"( } }
    table { name: "shared" }
    feature { name: "a" }
    feature { name: "b" table: "shared" pooling: MEAN }
    feature { name: "c" table: "shared" }
    dlrm { bottom: [24, 12] top: [40, 16] }
    train { batch_size: 100 learning_rate { base: 0.05 warmup_steps: 4 } eval_batch_size: 64 }
    cluster { worker_threads: 1 }
  )";
  absl::StatusOr<Job> job = ParseJob(text, "digest.textproto", overrides, cleared);
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

Job MakeSmallJobOf(const SmallModel& model, std::vector<std::string> overrides) {
  overrides.push_back(model.field);
  return MakeSmallJob("adagrad {}", overrides, {"dlrm"});
}

Job WithCache(Job job, const std::string& budget, int window_steps, int prefetch_steps) {
  job.mutable_cache()->set_budget(budget);
  job.mutable_cache()->set_window_steps(window_steps);
  job.mutable_cache()->set_prefetch_steps(prefetch_steps);
  return job;
}

ServerConfig ConfigOf(const Job& job, uint32_t index) {
  ServerConfig config;
  config.job_id = kSmallJobId;
  config.generation = kSmallJobGeneration;
  config.server_index = ServerIndex(index);
  config.num_servers = job.cluster().servers();
  config.num_workers = job.cluster().workers();
  config.seed = job.seed();
  config.staleness_steps = job.train().staleness_steps();
  config.tables = ResolveTables(job).AllLayouts();
  return config;
}

JobServers::JobServers(const Job& job) {
  for (uint32_t i = 0; i < job.cluster().servers(); ++i) {
    ServerLimits limits;
    limits.apply_threads = 1 + i % 2;
    limits.max_pending_push_bytes = ParseByteSize(job.cluster().max_pending_size()).value();
    cores_.push_back(std::make_unique<ServerCore>(limits, &scheduler_));
    EXPECT_TRUE(cores_.back()->Configure(ConfigOf(job, i)).ok());
    pointers_.push_back(cores_.back().get());
  }
}

JobServers::~JobServers() {
  for (ServerCore* core : pointers_) core->Shutdown();
}

void JobServers::AddDigest(Outcome* outcome) const {
  for (ServerCore* core : pointers_) {
    // No thread applies pushes, so the answer comes at once. The server may just have computed a
    // digest.
    absl::StatusOr<ServerCore::DigestAnswer> answer = absl::UnknownError("no answer");
    do {
      core->ComputeDigest(kSmallJobId, kSmallJobGeneration, [&](auto given) { answer = given; });
    } while (absl::IsResourceExhausted(answer.status()));
    ASSERT_TRUE(answer.ok()) << answer.status();
    outcome->digest.Add(answer->digest);
    outcome->rows += answer->rows;
  }
}

Outcome RunWorkers(const Job& job, JobServers* servers, WorkerOptions options, Transport* transport,
                   DenseBy dense_by) {
  InProcessTransport in_process(servers->cores());
  if (transport == nullptr) transport = &in_process;
  options.job_id = kSmallJobId;
  options.generation = kSmallJobGeneration;
  ExchangeMeeting meeting(job.cluster().workers(), servers->scheduler());
  if (dense_by == DenseBy::kSlices) {
    options.make_exchange = [&](const ExchangeOptions& exchange, ExchangeHooks hooks) {
      return meeting.Join(exchange, std::move(hooks));
    };
  }
  Outcome outcome;
  outcome.workers.resize(job.cluster().workers(), absl::UnknownError("never ran"));
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < job.cluster().workers(); ++rank) {
    threads.emplace_back([&, rank] {
      WorkerProgress progress(kSmallJobId, WorkerRank(rank), /*fd=*/-1);
      WorkerOptions of_rank = options;
      of_rank.rank = WorkerRank(rank);
      outcome.workers[rank] = RunWorker(job, of_rank, transport, servers->scheduler(), &progress);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::StatusOr<WorkerResult>& worker : outcome.workers) {
    EXPECT_TRUE(worker.ok()) << worker.status();
  }
  servers->AddDigest(&outcome);
  return outcome;
}

absl::Status StatusOfRun(const Job& job, WorkerOptions options) {
  JobServers servers(job);
  InProcessTransport transport(servers.cores());
  WorkerProgress progress(kSmallJobId, WorkerRank(0), /*fd=*/-1);
  options.job_id = kSmallJobId;
  options.generation = kSmallJobGeneration;
  return RunWorker(job, options, &transport, servers.scheduler(), &progress).status();
}

std::string Hex(const Digest& digest) {
  char text[40];
  snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(digest.high),
           static_cast<unsigned long long>(digest.low));
  return text;
}

}  // namespace thermocline
