// A small job that uses every feature, with its servers and workers in this process. Everything but
// gRPC and the launcher is real.
#ifndef THERMOCLINE_TESTS_TRAINING_SMALL_JOB_H_
#define THERMOCLINE_TESTS_TRAINING_SMALL_JOB_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "common/base/scheduler.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "server/core/server_core.h"
#include "worker/session/transport.h"
#include "worker/train/worker.h"

namespace thermocline {

inline constexpr char kSmallJobId[] = "digest";
inline constexpr uint64_t kSmallJobGeneration = 7;
// The steps of one pass over the 1200 rows that are not held out.
inline constexpr int64_t kSmallJobSteps = 12;

// The optimizers as job files have them, for tests that run with each.
inline constexpr const char* kOptimizers[] = {"sgd {}", "adagrad {}", "row_wise_adagrad {}",
                                              "adam {}"};
inline std::string NameOfOptimizer(const testing::TestParamInfo<const char*>& info) {
  const std::string text = info.param;
  return text.substr(0, text.find(' '));
}

// Makes a job with three features over two tables, bags of 0 to 3 lookups, and skewed ids, so that
// keys repeat. All tables have `optimizer`. cleared: fields that the job does not have, before the
// overrides: {"dlrm"}.
Job MakeSmallJob(const std::string& optimizer, const std::vector<std::string>& overrides,
                 const std::vector<std::string>& cleared = {});

// A model that is no DLRM, for tests that run with each.
struct SmallModel {
  const char* name;
  const char* field;  // What --set would say of a small job.
};
inline constexpr SmallModel kSmallModels[] = {
    {"wide_deep", "wide_deep={deep:[24,12] dropout:0.25 wide_optimizer{ftrl{l1:0.001 l2:0.01}}}"},
    {"deepfm", "deepfm={deep:[24,12]}"},
    {"dcnv2", "dcnv2={cross_layers:2 cross_rank:5 deep:24 dropout:0.1}"},
    {"finalmlp", "finalmlp={first:[24,12] second:18 heads:6 gate:8 first_gate_by:'numeric'}"},
};
Job MakeSmallJobOf(const SmallModel& model, std::vector<std::string> overrides);

// Makes a job with so many columns and no others. Each categorical column has a table of its own.
Job MakeJobOfColumns(int num_dense, int num_categorical, const std::vector<std::string>& overrides,
                     const std::vector<std::string>& cleared = {});

// Makes a job with lists whose values have weights: one list has its own table, another shares its
// table with a list without weights. The label is "y"; a third of the rows have no label "z".
Job MakeWeightedJob(const std::string& optimizer, const std::vector<std::string>& overrides);
// Makes a job of its lists without weights, whose two tasks share a layer: the second one learns
// "z" as a product of two probabilities. label: the name of the second task's label.
Job MakeJobOfTasks(const std::vector<std::string>& overrides, const std::string& label = "z");

// kGrowing: the samples of the fifth batch have no history; the ninth and the tenth batch have more
// than 1024 steps, which others don't have.
enum class Histories { kShort, kGrowing };
// Makes a job with an item and its kind, and histories of both, which share their tables. The
// sequence `past` has the histories, and the item itself as the last step. model: layers and a
// task, or a preset; also more sequences.
Job MakeSequenceJob(const std::string& model, const std::vector<std::string>& overrides,
                    Histories histories = Histories::kShort);

// A model that reads lists step by step.
struct SequenceModel {
  const char* name;
  const char* fields;
};
// The first reads the items by two sequences and pooled, the kinds by step alone.
inline constexpr SequenceModel kSequenceModels[] = {
    {"layers", R"(
      sequence { name: "alone" of: "items" }
      layer { name: "interest" input: "past" attention { query: ["item", "kind"] units: 6 } }
      layer { name: "mean" input: "alone" pool { mode: MEAN } }
      layer { name: "top" input: ["numeric", "fields", "items", "interest", "mean"]
              mlp { units: [24, 12] } }
      task { input: "top" })"},
    {"bst", "bst { heads: 2 positions: 3 deep: 16 dropout: 0.1 }"},
    {"tbsm", "tbsm { bottom: 8 top: [12, 6] head: 8 }"},
};

// The job with a cache. The budget may be below what a job file may say.
Job WithCache(Job job, const std::string& budget, int window_steps, int prefetch_steps);

ServerConfig ConfigOf(const Job& job, uint32_t index);

struct Outcome {
  Digest digest;
  uint64_t rows = 0;
  std::vector<absl::StatusOr<WorkerResult>> workers;
};

// The servers of a job, which keep their rows from one run of its workers to the next.
class JobServers {
 public:
  explicit JobServers(const Job& job);
  ~JobServers();

  const std::vector<ServerCore*>& cores() const { return pointers_; }
  Scheduler* scheduler() { return &scheduler_; }

  // REQUIRES: nothing is being applied.
  void AddDigest(Outcome* outcome) const;

 private:
  ThreadScheduler scheduler_;
  std::vector<std::unique_ptr<ServerCore>> cores_;
  std::vector<ServerCore*> pointers_;
};

// Whether workers in sync mode or the servers update the dense parameters. The bits are the same.
enum class DenseBy { kSlices, kServers };

// Runs all workers of the job from their start to their end. It sets the job, generation, rank and
// exchange of `options`.
//   transport: null to call the servers directly
Outcome RunWorkers(const Job& job, JobServers* servers, WorkerOptions options = {},
                   Transport* transport = nullptr, DenseBy dense_by = DenseBy::kSlices);

// Runs rank 0 alone, and returns its status. `options` are those of RunWorkers.
absl::Status StatusOfRun(const Job& job, WorkerOptions options = {});

std::string Hex(const Digest& digest);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TRAINING_SMALL_JOB_H_
