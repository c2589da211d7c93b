// Measures checkpoints and recovery of one server, with the real core, log and files, without gRPC.
//
//   fill        pushes that create all rows, and fill the push log
//   replay      a server that died comes back from that log
//   checkpoint  all rows are written while steps go on; against as many bytes written plainly, in
//               pieces of 1 MiB with one fsync at the end, before and after
//   increment   the rows that those steps changed
//   restore     a server begins with both files
//
// Files are dropped from the page cache before they are read.
//
//   thermocline-bench-durability --dir=DIR [--rows=N] [--dim=16] [--keys=40000]
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/process.h"
#include "common/base/scheduler.h"
#include "common/base/task_queue.h"
#include "common/base/timing.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/disk.h"
#include "proto/parameter_server.pb.h"
#include "server/core/server_core.h"
#include "server/storage/journal_opener.h"

ABSL_FLAG(std::string, dir, "", "Folder to work in; what this program leaves in it is removed");
ABSL_FLAG(uint64_t, rows, 8000000, "Rows of the table (Adagrad: dim more floats each)");
ABSL_FLAG(int32_t, dim, 16, "Floats in a row");
ABSL_FLAG(uint32_t, keys, 40000, "Keys that one step changes");
ABSL_FLAG(int32_t, load_threads, 2, "Threads that load a checkpoint's rows");
ABSL_FLAG(int32_t, checkpoint_threads, 1, "Threads that write a checkpoint's files, one each");
ABSL_FLAG(int32_t, checkpoints, 1, "Checkpoints of all rows; all but the last are called off");
ABSL_FLAG(bool, steps_meanwhile, true, "Apply steps while a checkpoint is written");
ABSL_FLAG(double, skew, 1.05, "Exponent of the power law that they are drawn from; 0: uniform");

namespace thermocline {
namespace {

constexpr int kExitUsage = 2;
constexpr uint32_t kFillKeys = 65536;
constexpr double kGb = 1e9;
constexpr char kJob[] = "bench";

// Returns the CPU time of all threads so far.
double ProcessorSeconds() {
  timespec time;
  CHECK_EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time), 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
double Seconds(const Stopwatch& watch) { return absl::ToDoubleSeconds(watch.Elapsed()); }

void Must(const absl::Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  CHECK(status.ok());
}

// Returns the bytes of all files below a folder.
uint64_t BytesIn(const std::string& folder) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

void DropFromPageCache(const std::string& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int fd = open(entry.path().c_str(), O_RDONLY);
    CHECK_GE(fd, 0);
    CHECK_EQ(fsync(fd), 0);
    CHECK_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
  }
}

// Returns the seconds that plain writes of `bytes` and one fsync take.
double PlainWrite(const std::string& path, uint64_t bytes) {
  const std::vector<char> piece(1 << 20, 'x');
  const Stopwatch watch;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  CHECK_GE(fd, 0);
  for (uint64_t done = 0; done < bytes; done += piece.size()) {
    CHECK_EQ(write(fd, piece.data(), piece.size()), static_cast<ssize_t>(piece.size()));
  }
  CHECK_EQ(fsync(fd), 0);
  const double seconds = Seconds(watch);
  close(fd);
  std::filesystem::remove(path);
  return seconds;
}

// One server process over a folder.
class Server {
 public:
  Server(const std::string& dir, const ServerConfig& config) : config_(config) {
    LogJournalOptions options;
    options.directory = absl::StrCat(dir, "/log");
    options.on_broken = Must;
    journals_ = std::make_unique<LogJournalOpener>(&disk_, &syncs_, options);
    ServerLimits limits;
    limits.load_threads = absl::GetFlag(FLAGS_load_threads);
    CheckpointIo io = {&disk_, &checkpoint_tasks_};
    io.num_files = NumFiles();
    core_ = std::make_unique<ServerCore>(limits, &scheduler_, journals_.get(), io);
  }
  ~Server() { core_->Shutdown(); }

  // Starts the server. Returns the seconds until it serves.
  double Configure(const std::string& base) {
    config_.base_checkpoint = base;
    const Stopwatch watch;
    Must(core_->Configure(config_));
    return Seconds(watch);
  }

  // Pushes the next step and returns how long that took, its update of the rows included.
  double Push(const std::vector<Key>& keys, int64_t step) {
    wire::PushChunk shard;
    shard.header = {kJob, config_.generation, WorkerRank(0), kNoStep};
    shard.step = Step(step);
    shard.learning_rate = 0.01f;
    const size_t floats = keys.size() * config_.tables[0].dim;
    shard.tables = {{TableId(0), wire::PushKind::kGradient, 0, keys.size(), 0, floats}};
    shard.keys.assign(keys.begin(), keys.end());
    shard.counts.assign(keys.size(), 1);
    shard.values.assign(floats, 0.5f);
    const Stopwatch watch;
    core_->Push(std::move(shard),
                [](const absl::StatusOr<wire::PushAnswer>& answer) { Must(answer.status()); });
    return Seconds(watch);
  }

  CheckpointReply Checkpoint(CheckpointRequest::Action action, int64_t step = 0) {
    CheckpointRequest request;
    request.set_job_id(kJob);
    request.set_generation(config_.generation);
    request.set_action(action);
    request.set_step(step);
    CheckpointReply result;
    core_->Checkpoint(request, [&](const absl::StatusOr<CheckpointReply>& reply) {
      Must(reply.status());
      result = *reply;
    });
    return result;
  }

  ServerStats Stats() const {
    ServerStats stats;
    core_->FillStats(&stats);
    return stats;
  }

 private:
  static size_t NumFiles() {
    return static_cast<size_t>(std::max(1, absl::GetFlag(FLAGS_checkpoint_threads)));
  }

  PosixDisk disk_;
  ServerConfig config_;
  ThreadScheduler scheduler_;
  TaskQueue syncs_{1};
  TaskQueue checkpoint_tasks_{static_cast<int>(CheckpointIo::MaxTasks(NumFiles()))};
  std::unique_ptr<LogJournalOpener> journals_;
  std::unique_ptr<ServerCore> core_;
};

ServerConfig MakeConfig(const std::string& dir) {
  ServerConfig config;
  config.job_id = kJob;
  config.generation = 1;
  config.durability = LogDurability::kProcess;
  TableLayout table;
  table.id = TableId(0);
  table.name = "T";
  table.dim = absl::GetFlag(FLAGS_dim);
  table.optimizer.kind = OptimizerKind::kAdagrad;
  table.init_scale = 0.01f;
  config.tables = {table};
  config.checkpoint_directory = absl::StrCat(dir, "/checkpoints");
  config.checkpoint_full_every = 8;
  return config;
}

class Benchmark {
 public:
  explicit Benchmark(const std::string& dir) : dir_(dir), config_(MakeConfig(dir)) {
    Must(CheckpointStore(&disk_, config_.checkpoint_directory).Prepare());
  }

  void Run() {
    server_ = std::make_unique<Server>(dir_, config_);
    server_->Configure("");
    Fill();
    Replay();
    std::printf("alone       %s\n", Describe(TrainFor(20)).c_str());
    for (int i = 1; i < absl::GetFlag(FLAGS_checkpoints); ++i) {
      const Step cut(next_step_ - 1);
      WriteCheckpoint("checkpoint");
      server_->Checkpoint(CheckpointRequest::CALL_OFF, cut.value());
      TrainFor(1);
    }
    CommitNext("checkpoint");
    TrainFor(100);
    CommitNext("increment ");
    Restore();
  }

 private:
  void Fill() {
    const uint64_t rows = absl::GetFlag(FLAGS_rows);
    const Stopwatch watch;
    std::vector<Key> keys;
    for (Key key = 0; key < rows; ++key) {
      keys.push_back(key);
      if (keys.size() < kFillKeys && key + 1 < rows) continue;
      server_->Push(keys, next_step_++);
      keys.clear();
    }
    std::printf("fill        %.2f M rows/s\n", rows / Seconds(watch) / 1e6);
  }

  void Replay() {
    server_.reset();
    DropFromPageCache(dir_);
    const double gb = BytesIn(absl::StrCat(dir_, "/log")) / kGb;
    server_ = std::make_unique<Server>(dir_, config_);
    const double seconds = server_->Configure("");
    resident_gb_ = server_->Stats().tables(0).bytes() / kGb;
    std::printf(
        "replay      %.2f GB of log in %.1f s: %.2f s a GB of log, %.2f s a GB of table (%.2f "
        "GB)\n",
        gb, seconds, seconds / gb, seconds / resident_gb_, resident_gb_);
  }

  // Draws keys from a power law over all rows, and returns the distinct ones.
  std::vector<Key> DrawKeys() {
    const double rows = static_cast<double>(absl::GetFlag(FLAGS_rows));
    const double skew = absl::GetFlag(FLAGS_skew);
    std::uniform_real_distribution<double> uniform(0, 1);
    std::vector<Key> keys;
    for (uint32_t i = 0; i < absl::GetFlag(FLAGS_keys); ++i) {
      const double u = uniform(random_);
      // The inverse of the distribution function of a continuous power law on [1, rows].
      const double power = 1 - skew;
      const double rank = std::abs(power) < 1e-9
                              ? std::pow(rows, u)
                              : std::pow(1 + u * (std::pow(rows, power) - 1), 1 / power);
      keys.push_back(std::min<Key>(static_cast<Key>(rank), absl::GetFlag(FLAGS_rows)) - 1);
    }
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    return keys;
  }

  double TrainStep() {
    const std::vector<Key> keys = DrawKeys();
    return server_->Push(keys, next_step_++);
  }
  std::vector<double> TrainFor(int steps) {
    std::vector<double> times;
    for (int i = 0; i < steps; ++i) times.push_back(TrainStep());
    return times;
  }
  static std::string Describe(std::vector<double> times) {
    if (times.empty()) return "no step";
    std::sort(times.begin(), times.end());
    return absl::StrCat("a step ", 1e3 * times[times.size() / 2], " ms (median), ",
                        1e3 * times.back(), " ms (longest of ", times.size(), ")");
  }

  void CommitNext(const char* what) {
    const Step cut(next_step_ - 1);
    Commit(cut, WriteCheckpoint(what));
  }

  CheckpointShard WriteCheckpoint(const char* what) {
    const Step cut(next_step_ - 1);
    std::vector<double> times;
    const double processor_s = ProcessorSeconds();
    server_->Checkpoint(CheckpointRequest::NAME_CUT, cut.value());
    CutStatus status;
    while (true) {
      status = server_->Checkpoint(CheckpointRequest::STATUS).cuts(0);
      if (status.state() == CutStatus::FAILED) Must(absl::AbortedError(status.error()));
      if (status.state() == CutStatus::WRITTEN) break;
      if (absl::GetFlag(FLAGS_steps_meanwhile)) {
        times.push_back(TrainStep());
      } else {
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
    const double used_s = ProcessorSeconds() - processor_s;
    uint64_t bytes = 0, rows = 0;
    for (const CheckpointFile& file : status.shard().files()) {
      bytes += file.bytes();
      rows += file.rows();
    }
    const std::string plain = absl::StrCat(dir_, "/plain");
    const double plain_s = std::min(PlainWrite(plain, bytes), PlainWrite(plain, bytes));
    std::printf(
        "%s  %lu rows, %.2f GB in %.2f s (%.2f s of processors, steps included): %.2f GB/s, "
        "%.2f of plain writing (%.2f GB/s); pause %.2f ms; meanwhile %s\n",
        what, static_cast<unsigned long>(rows), bytes / kGb, status.write_s(), used_s,
        bytes / kGb / status.write_s(), plain_s / status.write_s(), bytes / kGb / plain_s,
        1e3 * status.pause_s(), Describe(times).c_str());
    return status.shard();
  }

  void Commit(Step cut, const CheckpointShard& shard) {
    CheckpointManifest manifest;
    manifest.set_format_version(kCheckpointFormatVersion);
    manifest.set_job_id(kJob);
    manifest.set_generation(config_.generation);
    manifest.set_step(cut.value());
    manifest.set_num_servers(1);
    manifest.set_num_workers(1);
    *manifest.add_tables() = TableLayoutToProto(config_.tables[0]);
    for (const CheckpointFile& file : shard.files()) *files_.Add() = file;
    CheckpointShard* whole = manifest.add_shards();
    *whole = shard;
    *whole->mutable_files() = files_;
    Must(CheckpointStore(&disk_, config_.checkpoint_directory).Commit(manifest));
    server_->Checkpoint(CheckpointRequest::COMMITTED, cut.value());
    base_ = CheckpointName(cut);
  }

  void Restore() {
    server_.reset();
    DropFromPageCache(dir_);
    const double gb = BytesIn(config_.checkpoint_directory) / kGb;
    config_.generation = 2;
    server_ = std::make_unique<Server>(dir_, config_);
    const double processor_s = ProcessorSeconds();
    const double seconds = server_->Configure(base_);
    std::printf(
        "restore     %.2f GB of files, %lu rows, in %.1f s on %d threads (%.1f s of processors): "
        "%.2f s a GB of files, %.2f s a GB of table\n",
        gb, static_cast<unsigned long>(server_->Stats().loaded_rows()), seconds,
        absl::GetFlag(FLAGS_load_threads), ProcessorSeconds() - processor_s, seconds / gb,
        seconds / resident_gb_);
  }

  const std::string dir_;
  ServerConfig config_;
  PosixDisk disk_;
  std::unique_ptr<Server> server_;
  std::mt19937_64 random_{1};
  int64_t next_step_ = 0;
  double resident_gb_ = 0;
  google::protobuf::RepeatedPtrField<CheckpointFile> files_;  // All commits' files, oldest first.
  std::string base_;
};

int Main() {
  if (absl::GetFlag(FLAGS_dir).empty() || absl::GetFlag(FLAGS_rows) < 1 ||
      absl::GetFlag(FLAGS_keys) < 1 || absl::GetFlag(FLAGS_dim) < 1 ||
      absl::GetFlag(FLAGS_load_threads) < 1) {
    std::fprintf(stderr, "thermocline-bench-durability: --dir=DIR is needed, numbers above 0\n");
    return kExitUsage;
  }
  const std::string dir = absl::StrCat(absl::GetFlag(FLAGS_dir), "/bench-", getpid());
  std::filesystem::create_directories(dir);
  Benchmark(dir).Run();
  std::filesystem::remove_all(dir);
  return 0;
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  thermocline::ParseProgramFlags(
      "measures checkpoints and recovery of one server.\n"
      "  thermocline-bench-durability --dir=DIR [--rows=8000000] [--dim=16] [--keys=40000]",
      argc, argv);
  thermocline::TuneMallocForMessages();
  thermocline::TurnOffMutexChecks();
  return thermocline::Main();
}
