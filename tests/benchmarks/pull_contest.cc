#include "tests/benchmarks/pull_contest.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/wire/codec.h"
#include "tests/benchmarks/contestants.h"

namespace thermocline {
namespace {

constexpr double kEchoTarget = 0.75;
constexpr double kRedisTarget = 5.0;
constexpr double kEmbeddedTarget = 1;
// Requests take their keys from so many prepared sets.
constexpr size_t kKeySets = 64;
constexpr size_t kRedisBatch = 100;

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

absl::StatusOr<std::string> FindServer(const std::string& given) {
  if (!given.empty()) return given;
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : {"", "../../server", "../server"}) {
    const auto path = folder / place / "thermocline-server";
    if (access(path.c_str(), X_OK) == 0) return path.string();
  }
  return absl::NotFoundError(
      absl::StrCat("no thermocline-server near ", folder.string(), "; --server names it"));
}

// Makes sets of n distinct keys below options.rows, as batches of click data read them.
std::vector<std::vector<Key>> MakeKeySets(const ContestOptions& options, uint32_t n) {
  std::mt19937_64 rng(options.seed);
  // A key's popularity does not depend on the place of its row.
  std::vector<Key> by_rank(options.rows);
  std::iota(by_rank.begin(), by_rank.end(), Key{0});
  std::shuffle(by_rank.begin(), by_rank.end(), rng);
  std::vector<double> cumulative(options.rows);
  double sum = 0;
  for (uint32_t rank = 0; rank < options.rows; ++rank) {
    cumulative[rank] = sum += std::pow(rank + 1.0, -options.skew);
  }
  std::uniform_real_distribution<double> draw(0, sum);
  std::vector<std::vector<Key>> sets(kKeySets);
  std::vector<size_t> last_set(options.rows, kKeySets);  // [rows] The last set that has the key.
  for (size_t i = 0; i < kKeySets; ++i) {
    while (sets[i].size() < n) {
      const auto found = std::lower_bound(cumulative.begin(), cumulative.end(), draw(rng));
      const size_t rank = std::min<size_t>(found - cumulative.begin(), options.rows - 1);
      if (last_set[rank] == i) continue;
      last_set[rank] = i;
      sets[i].push_back(by_rank[rank]);
    }
  }
  return sets;
}

// The bytes of one request and its reply, with the header of the benchmark's calls.
struct MessageBytes {
  size_t request;
  size_t reply;
};

MessageBytes PullBytes(uint32_t keys, uint32_t dim) {
  const wire::Header header = {"bench", 1, WorkerRank(0), kNoStep};
  const std::vector<Key> some(keys);
  const wire::PullTableView table = {TableId(1), some};
  const wire::PullReplyBuilder::Table rows = {TableId(1), size_t{keys} * dim * sizeof(float)};
  return {wire::EncodedBytes(wire::PullView{header, wire::PullKind::kRead, Step(0), 0, kNoStep,
                                            absl::MakeConstSpan(&table, 1)}),
          wire::PullReplyBuilder::EncodedBytes(wire::PullAnswer(), absl::MakeConstSpan(&rows, 1))};
}

MessageBytes PushBytes(uint32_t keys, uint32_t dim) {
  const wire::Header header = {"bench", 1, WorkerRank(0), Step(1000)};
  const std::vector<Key> some(keys);
  const std::vector<uint32_t> counts(keys);
  const std::vector<float> values(size_t{keys} * dim);
  const wire::PushSlice slice = {TableId(1), wire::PushKind::kGradient, some, counts, values};
  return {wire::EncodedBytes(
              wire::PushView{header, Step(1000), 0, 2, 0.01f, absl::MakeConstSpan(&slice, 1)}),
          wire::Encode(wire::PushAnswer{wire::Readiness::kReady, Step(1000)}).Length()};
}

// The values of all repetitions.
struct Series {
  std::vector<double> values;
  void Add(double value) { values.push_back(value); }
  double Median() const {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  // Returns "median [least most]".
  std::string Text() const {
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    return absl::StrFormat("%.2f [%.2f %.2f]", Median(), *least, *most);
  }
};

double PerSecond(const Measured& measured) {
  return static_cast<double>(measured.calls) / measured.seconds;
}

// One contestant's values in all repetitions.
struct Record {
  Series gb_per_s, mrows_per_s, client_cpu_us, server_cpu_us;  // CPU times are per call.
  void Add(const Measured& measured, double call_bytes, double call_rows) {
    gb_per_s.Add(1e-9 * call_bytes * PerSecond(measured));
    mrows_per_s.Add(1e-6 * call_rows * PerSecond(measured));
    client_cpu_us.Add(1e6 * measured.client_cpu_s / static_cast<double>(measured.calls));
    server_cpu_us.Add(1e6 * measured.server_cpu_s / static_cast<double>(measured.calls));
  }
  void Print(const char* name) const {
    std::printf("  %-16s %s GB/s, %s M rows/s; CPU a call: client %.0f us, server %.0f us\n", name,
                gb_per_s.Text().c_str(), mrows_per_s.Text().c_str(), client_cpu_us.Median(),
                server_cpu_us.Median());
  }
};

void PrintRatio(const char* name, const Series& ratio, double target) {
  std::printf("  %-16s %s", name, ratio.Text().c_str());
  if (target > 0) {
    std::printf("  (target %.2f: %s)", target, ratio.Median() >= target ? "met" : "MISSED");
  }
  std::printf("\n");
}

class Contest {
 public:
  explicit Contest(const ContestOptions& options) : options_(options) {}
  absl::Status Run();

 private:
  void PrintSetup(const std::string& server) const;
  absl::Status CompareRows(const std::vector<Key>& keys);
  absl::Status RunPulls(uint32_t keys, uint32_t channels);
  absl::Status RunPushes(uint32_t keys, uint32_t channels);
  Measured RunRedis(const std::vector<std::vector<Key>>& key_sets, int in_flight);
  absl::StatusOr<std::unique_ptr<EchoServer>> StartEcho(EchoKind kind, const MessageBytes& bytes,
                                                        uint32_t channels) {
    return EchoServer::Start(kind, folder_.path(), bytes.request, bytes.reply,
                             static_cast<int>(channels));
  }
  uint32_t InFlight(uint32_t channels) const {
    return options_.in_flight > 0 ? options_.in_flight : channels;
  }

  const ContestOptions options_;
  TemporaryFolder folder_;
  std::unique_ptr<ThermoclineServer> server_, here_;  // here_: in this process.
  std::unique_ptr<RedisServer> redis_;
};

void Contest::PrintSetup(const std::string& server) const {
  std::printf("machine      %s, %u cores\n", CpuModel().c_str(),
              std::thread::hardware_concurrency());
  std::printf("server       %s, over 127.0.0.1\n", server.c_str());
  std::printf("table        %u rows of dim %u, Adagrad: %u bytes a row with its state\n",
              options_.rows, options_.dim, 2 * options_.dim * 4);
  std::printf("keys         the distinct ones of draws from a %s, seed %llu\n",
              options_.skew == 0
                  ? "uniform distribution"
                  : absl::StrFormat("power law of exponent %.2f", options_.skew).c_str(),
              static_cast<unsigned long long>(options_.seed));
  std::printf("repetitions  %u of %.2f s each, in turn; median [least most]\n\n",
              options_.repetitions, options_.seconds);
}

absl::Status Contest::Run() {
  ASSIGN_OR_RETURN(const std::string program, FindServer(options_.server));
  PrintSetup(program);
  ASSIGN_OR_RETURN(server_,
                   ThermoclineServer::Start(program, folder_.path(), options_.dim, options_.rows));
  ASSIGN_OR_RETURN(here_, ThermoclineServer::StartHere(options_.dim, options_.rows));
  if (options_.redis) {
    auto redis = RedisServer::Start(folder_.path(), options_.dim, options_.rows, server_.get());
    if (redis.ok()) {
      redis_ = *std::move(redis);
    } else {
      std::printf("without Redis: %s\n\n", redis.status().ToString().c_str());
    }
  }
  for (uint32_t keys : options_.keys) {
    for (uint32_t channels : options_.channels) {
      RETURN_IF_ERROR(server_->Connect(static_cast<int>(channels)));
      RETURN_IF_ERROR(options_.push ? RunPushes(keys, channels) : RunPulls(keys, channels));
    }
  }
  return absl::OkStatus();
}

absl::Status Contest::CompareRows(const std::vector<Key>& keys) {
  std::vector<float> ours(keys.size() * options_.dim), theirs(keys.size() * options_.dim);
  RETURN_IF_ERROR(server_->Read(keys, absl::MakeSpan(ours)));
  if (std::count(ours.begin(), ours.end(), 0.0f) > static_cast<int64_t>(ours.size() / 2)) {
    return absl::DataLossError("the rows pulled are mostly zeros");
  }
  RETURN_IF_ERROR(here_->Read(keys, absl::MakeSpan(theirs)));
  if (ours != theirs) return absl::DataLossError("the server in this process has other rows");
  if (redis_ == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(redis_->Read(keys, absl::MakeSpan(theirs)));
  if (ours != theirs) return absl::DataLossError("Redis has other rows than the server");
  return absl::OkStatus();
}

absl::Status Contest::RunPulls(uint32_t keys, uint32_t channels) {
  const auto key_sets = MakeKeySets(options_, keys);
  const MessageBytes bytes = PullBytes(keys, options_.dim);
  const double call_bytes = static_cast<double>(bytes.request + bytes.reply);
  const int in_flight = static_cast<int>(InFlight(channels));
  RETURN_IF_ERROR(CompareRows(key_sets[0]));
  ASSIGN_OR_RETURN(const auto delivered, StartEcho(EchoKind::kDelivered, bytes, channels));
  ASSIGN_OR_RETURN(const auto untouched, StartEcho(EchoKind::kUntouched, bytes, channels));
  Record delivered_record, untouched_record, pull_record, here_record, redis_record;
  Series of_delivered, of_untouched, here_of_delivered, of_redis;
  // The first repetition opens the connections and warms the caches; it doesn't count.
  for (uint32_t i = 0; i <= options_.repetitions; ++i) {
    const Measured echoes = delivered->Run(in_flight, options_.seconds);
    const Measured pulls = server_->Pull(key_sets, in_flight, options_.seconds);
    const Measured here = here_->Pull(key_sets, in_flight, options_.seconds);
    const Measured bare = untouched->Run(in_flight, options_.seconds);
    const Measured gets = RunRedis(key_sets, in_flight);
    if (i == 0) continue;
    delivered_record.Add(echoes, call_bytes, keys);
    untouched_record.Add(bare, call_bytes, keys);
    pull_record.Add(pulls, call_bytes, keys);
    here_record.Add(here, call_bytes, keys);
    here_of_delivered.Add(PerSecond(here) / PerSecond(echoes));
    of_delivered.Add(PerSecond(pulls) / PerSecond(echoes));
    of_untouched.Add(PerSecond(pulls) / PerSecond(bare));
    if (redis_ == nullptr) continue;
    redis_record.Add(gets, call_bytes, keys);
    of_redis.Add(PerSecond(pulls) / PerSecond(gets));
  }
  std::printf("pull: %u keys, %u channels, %d in flight; %.0f KB asked, %.0f KB answered\n", keys,
              channels, in_flight, 1e-3 * bytes.request, 1e-3 * bytes.reply);
  untouched_record.Print("echo, untouched");
  delivered_record.Print("echo, delivered");
  pull_record.Print("pull");
  here_record.Print("pull, embedded");
  if (redis_ != nullptr) redis_record.Print("redis");
  PrintRatio("pull / untouched", of_untouched, 0);
  PrintRatio("pull / delivered", of_delivered, kEchoTarget);
  PrintRatio("embedded / deliv.", here_of_delivered, kEmbeddedTarget);
  if (redis_ != nullptr) PrintRatio("pull / redis", of_redis, kRedisTarget);
  std::printf("\n");
  std::fflush(stdout);
  return absl::OkStatus();
}

// Returns the better of small batches and one command.
Measured Contest::RunRedis(const std::vector<std::vector<Key>>& key_sets, int in_flight) {
  if (redis_ == nullptr) return {};
  const Measured batches = redis_->Run(key_sets, kRedisBatch, in_flight, options_.seconds);
  const Measured whole = redis_->Run(key_sets, key_sets[0].size(), in_flight, options_.seconds);
  return PerSecond(batches) > PerSecond(whole) ? batches : whole;
}

absl::Status Contest::RunPushes(uint32_t keys, uint32_t channels) {
  const auto key_sets = MakeKeySets(options_, keys);
  const int chunks = static_cast<int>(InFlight(channels));
  const MessageBytes bytes = PushBytes(keys / chunks, options_.dim);
  const double call_bytes = chunks * static_cast<double>(bytes.request + bytes.reply);
  ASSIGN_OR_RETURN(const auto echo, StartEcho(EchoKind::kDelivered, bytes, channels));
  Record echo_record, push_record, here_record;
  Series of_echo, here_of_echo;
  for (uint32_t i = 0; i <= options_.repetitions; ++i) {
    const Measured echoes = echo->RunGroups(chunks, options_.seconds);
    const Measured pushes = server_->Push(key_sets, chunks, options_.seconds);
    const Measured here = here_->Push(key_sets, chunks, options_.seconds);
    if (i == 0) continue;
    echo_record.Add(echoes, call_bytes, keys);
    push_record.Add(pushes, call_bytes, keys);
    here_record.Add(here, call_bytes, keys);
    here_of_echo.Add(PerSecond(here) / PerSecond(echoes));
    of_echo.Add(PerSecond(pushes) / PerSecond(echoes));
  }
  std::printf("push: %u keys in %d parts of %.0f KB, %u channels; applied with Adagrad\n", keys,
              chunks, 1e-3 * bytes.request, channels);
  echo_record.Print("echo, delivered");
  push_record.Print("push");
  here_record.Print("push, embedded");
  PrintRatio("push / delivered", of_echo, 0);
  PrintRatio("embedded / deliv.", here_of_echo, 0);
  std::printf("\n");
  std::fflush(stdout);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunContest(const ContestOptions& options) { return Contest(options).Run(); }

}  // namespace thermocline
