#include "tests/benchmarks/pull_contest.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/wire/codec.h"
#include "tests/benchmarks/contestants.h"

namespace thermocline {
namespace {

constexpr double kEchoTarget = 0.75;
constexpr double kRedisTarget = 5.0;
// Requests' keys are taken from so many prepared sets.
constexpr size_t kMaxKeySets = 64;
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

// Disjoint sets of n random keys below `rows`, at least one.
std::vector<std::vector<Key>> MakeKeySets(uint32_t rows, uint32_t n, uint64_t seed) {
  std::vector<Key> all(rows);
  std::iota(all.begin(), all.end(), Key{0});
  std::mt19937_64 rng(seed);
  std::shuffle(all.begin(), all.end(), rng);
  std::vector<std::vector<Key>> sets;
  for (size_t begin = 0; begin + n <= rows && sets.size() < kMaxKeySets; begin += n) {
    sets.emplace_back(all.begin() + begin, all.begin() + begin + n);
  }
  return sets;
}

// Bytes of one request and its reply, with the header that the benchmark's calls have.
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
  const wire::PushTableView table = {TableId(1), wire::PushKind::kGradient, some, counts, values};
  return {wire::EncodedBytes(wire::PushView{header, Step(1000), Step(1000), 0, 2, 0.01f,
                                            absl::MakeConstSpan(&table, 1)}),
          wire::Encode(wire::PushAnswer{wire::Readiness::kReady, Step(1000)}).Length()};
}

// The measurements of one contestant or one ratio over the repetitions.
struct Series {
  std::vector<double> values;
  void Add(double value) { values.push_back(value); }
  std::string Text(const char* format = "%.2f") const {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const auto text = [&](double value) {
      char buffer[32];
      std::snprintf(buffer, sizeof(buffer), format, value);
      return std::string(buffer);
    };
    return absl::StrCat(text(Median()), " [", text(sorted.front()), " ", text(sorted.back()), "]");
  }
  double Median() const {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

double PerSecond(const Measured& measured) {
  return static_cast<double>(measured.calls) / measured.seconds;
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
  uint32_t InFlight(uint32_t channels) const {
    return options_.in_flight > 0 ? options_.in_flight : channels;
  }

  const ContestOptions options_;
  TemporaryFolder folder_;
  std::unique_ptr<ThermoclineServer> server_;
  std::unique_ptr<RedisServer> redis_;
};

void Contest::PrintSetup(const std::string& server) const {
  std::printf("machine      %s, %u cores\n", CpuModel().c_str(),
              std::thread::hardware_concurrency());
  std::printf("server       %s, over 127.0.0.1\n", server.c_str());
  std::printf("table        %u rows of dim %u, Adagrad: %u bytes a row with its state\n",
              options_.rows, options_.dim, 2 * options_.dim * 4);
  std::printf("keys         distinct, uniformly random, seed %llu\n",
              static_cast<unsigned long long>(options_.seed));
  std::printf("repetitions  %u of %.2f s each, in turn; median [least most]\n\n",
              options_.repetitions, options_.seconds);
}

absl::Status Contest::Run() {
  ASSIGN_OR_RETURN(const std::string program, FindServer(options_.server));
  PrintSetup(program);
  ASSIGN_OR_RETURN(server_,
                   ThermoclineServer::Start(program, folder_.path(), options_.dim, options_.rows));
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
  if (redis_ == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(redis_->Read(keys, absl::MakeSpan(theirs)));
  if (ours != theirs) return absl::DataLossError("Redis has other rows than the server");
  return absl::OkStatus();
}

absl::Status Contest::RunPulls(uint32_t keys, uint32_t channels) {
  const auto key_sets = MakeKeySets(options_.rows, keys, options_.seed);
  const MessageBytes bytes = PullBytes(keys, options_.dim);
  const int in_flight = static_cast<int>(InFlight(channels));
  RETURN_IF_ERROR(CompareRows(key_sets[0]));
  ASSIGN_OR_RETURN(const auto echo, EchoServer::Start(folder_.path(), bytes.request, bytes.reply,
                                                      static_cast<int>(channels)));
  // The first repetition opens the connections and warms the caches; it doesn't count.
  Series echo_gb, pull_gb, pull_mrows, redis_mrows, of_echo, of_redis;
  const double call_gb = 1e-9 * static_cast<double>(bytes.request + bytes.reply);
  for (uint32_t i = 0; i <= options_.repetitions; ++i) {
    const double echoes = PerSecond(echo->Run(in_flight, options_.seconds));
    const double pulls = PerSecond(server_->Pull(key_sets, in_flight, options_.seconds));
    double gets = 0;
    if (redis_ != nullptr) {
      for (size_t batch : {kRedisBatch, size_t{keys}}) {
        gets = std::max(gets, PerSecond(redis_->Run(key_sets, batch, in_flight, options_.seconds)));
      }
    }
    if (i == 0) continue;
    echo_gb.Add(call_gb * echoes);
    pull_gb.Add(call_gb * pulls);
    pull_mrows.Add(1e-6 * keys * pulls);
    of_echo.Add(pulls / echoes);
    if (redis_ == nullptr) continue;
    redis_mrows.Add(1e-6 * keys * gets);
    of_redis.Add(pulls / gets);
  }
  std::printf("pull  %u keys, %u channels, %d in flight: %.0f KB asked, %.0f KB answered\n", keys,
              channels, in_flight, 1e-3 * bytes.request, 1e-3 * bytes.reply);
  std::printf("  echo        %s GB/s\n", echo_gb.Text().c_str());
  std::printf("  pull        %s GB/s, %s M rows/s\n", pull_gb.Text().c_str(),
              pull_mrows.Text("%.1f").c_str());
  std::printf("  pull/echo   %s  (target %.2f: %s)\n", of_echo.Text().c_str(), kEchoTarget,
              of_echo.Median() >= kEchoTarget ? "met" : "MISSED");
  if (redis_ != nullptr) {
    std::printf("  redis       %s M rows/s\n", redis_mrows.Text().c_str());
    std::printf("  pull/redis  %s  (target %.0f: %s)\n", of_redis.Text("%.1f").c_str(),
                kRedisTarget, of_redis.Median() >= kRedisTarget ? "met" : "MISSED");
  }
  std::printf("\n");
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Contest::RunPushes(uint32_t keys, uint32_t channels) {
  const auto key_sets = MakeKeySets(options_.rows, keys, options_.seed);
  const int parts = static_cast<int>(InFlight(channels));
  const MessageBytes bytes = PushBytes(keys / parts, options_.dim);
  ASSIGN_OR_RETURN(const auto echo, EchoServer::Start(folder_.path(), bytes.request, bytes.reply,
                                                      static_cast<int>(channels)));
  Series echo_gb, push_gb, push_mrows, of_echo;
  const double group_gb = 1e-9 * parts * static_cast<double>(bytes.request + bytes.reply);
  for (uint32_t i = 0; i <= options_.repetitions; ++i) {
    const double echoes = PerSecond(echo->RunGroups(parts, options_.seconds));
    const double pushes = PerSecond(server_->Push(key_sets, parts, options_.seconds));
    if (i == 0) continue;
    echo_gb.Add(group_gb * echoes);
    push_gb.Add(group_gb * pushes);
    push_mrows.Add(1e-6 * keys * pushes);
    of_echo.Add(pushes / echoes);
  }
  std::printf("push  %u keys in %d parts of %.0f KB, %u channels; applied (Adagrad)\n", keys, parts,
              1e-3 * bytes.request, channels);
  std::printf("  echo       %s GB/s\n", echo_gb.Text().c_str());
  std::printf("  push       %s GB/s, %s M rows/s\n", push_gb.Text().c_str(),
              push_mrows.Text("%.1f").c_str());
  std::printf("  push/echo  %s\n\n", of_echo.Text().c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunContest(const ContestOptions& options) { return Contest(options).Run(); }

}  // namespace thermocline
