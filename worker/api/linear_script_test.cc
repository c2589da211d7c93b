// Whole runs of a script in C (testing/linear_script.c) over libthermocline: the test is the
// worker.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/version/version.h"
#include "worker/api/script_channel.h"
#include "worker/api/script_process.h"
#include "worker/api/testing/message_with_descriptors.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kScript[] = "worker/api/linear_script";
constexpr char kJob[] = "{\"name\": \"linear\"}";
constexpr size_t kDim = 2;
constexpr float kRate = 0.5f;  // The learning rate of its own parameters.

// Two features: one lookup a sample, and weighted lists.
struct LinearBatch {
  std::vector<float> numeric, labels;  // [size]
  std::vector<float> rows;             // [rows, kDim]
  std::vector<int32_t> single;         // [size]
  std::vector<int32_t> list, offsets;  // [lookups], [size + 1]
  std::vector<float> list_weights;     // [lookups]
  size_t size() const { return labels.size(); }
  size_t num_rows() const { return rows.size() / kDim; }
};

LinearBatch MakeBatch(int64_t step) {
  const float x = static_cast<float>(step);
  return {{0.5f, -0.25f, 0.125f * x},
          {1, 0, 1},
          {0.5f, 9, -0.5f, 9, 0.25f * x, 9, 1, 9},
          {0, 1, 0},
          {2, 1, 2, 2},
          {0, 1, 1, 4},
          {0.5f, 0.25f, 2, -1}};
}

// What the script computes, in the same order of the same operations.
struct LinearModel {
  float weight = 0.25f;
  float bias = 0;

  float Logit(const LinearBatch& batch, size_t sample) const {
    float logit = bias + weight * batch.numeric[sample];
    logit += batch.rows[static_cast<size_t>(batch.single[sample]) * kDim];
    for (int32_t i = batch.offsets[sample]; i < batch.offsets[sample + 1]; ++i) {
      logit += batch.list_weights[i] * batch.rows[static_cast<size_t>(batch.list[i]) * kDim];
    }
    return logit;
  }
  // Returns the gradients of the batch's rows and the sum of its losses.
  std::pair<std::vector<float>, double> Train(const LinearBatch& batch) {
    std::vector<float> gradients(batch.rows.size());
    double loss = 0;
    float weight_gradient = 0, bias_gradient = 0;
    for (size_t sample = 0; sample < batch.size(); ++sample) {
      const float error = Logit(batch, sample) - batch.labels[sample];
      loss += 0.5 * error * error;
      weight_gradient += error * batch.numeric[sample];
      bias_gradient += error;
      gradients[static_cast<size_t>(batch.single[sample]) * kDim] += error;
      for (int32_t i = batch.offsets[sample]; i < batch.offsets[sample + 1]; ++i) {
        gradients[static_cast<size_t>(batch.list[i]) * kDim] += batch.list_weights[i] * error;
      }
    }
    weight -= kRate * weight_gradient;
    bias -= kRate * bias_gradient;
    return {gradients, loss};
  }
};

// A batch in its slot, and where the script's answer to it will be.
struct SentBatch {
  uint32_t slot = 0;
  size_t gradients = 0, has_gradient = 0, scores = 0, own_metric = 0;  // Offsets in bytes.
};

class LinearScriptTest : public testing::Test {
 protected:
  void Start(const std::string& mode) {
    ScriptProcessOptions options;
    options.command = {kScript, mode};
    absl::StatusOr<std::unique_ptr<ScriptProcess>> script = ScriptProcess::Start(options);
    ASSERT_TRUE(script.ok()) << script.status();
    script_ = *std::move(script);
    ScriptChannelOptions channel;
    channel.fd = socket_ = script_->TakeSocket();
    channel.pidfd = script_->pidfd();
    channel.max_state_bytes = 1 << 20;
    channel_ = std::make_unique<ScriptChannel>(channel);
  }
  void Connect() {
    ASSERT_TRUE(channel_->SendHello(kJob).ok());
    Expect(TC_READY);
  }
  ScriptMessage Expect(tc_message_kind kind) {
    absl::StatusOr<ScriptMessage> message = channel_->Receive([] { return absl::OkStatus(); });
    if (!message.ok()) {
      WaitForEnd();
      ADD_FAILURE() << message.status() << "; the script " << script_->DescribeEnd();
      return {};
    }
    EXPECT_EQ(message->header.kind, kind) << message->payload;
    return *std::move(message);
  }
  // The script's exit code.
  std::optional<int> WaitForEnd() {
    EXPECT_TRUE(script_->AwaitEnd(absl::InfiniteDuration()));
    return script_->exit_code();
  }
  // Waits until the script has stopped itself, and lets it go on.
  void WaitForStop() {
    std::string number, name, state;
    while (state != "T" && state != "Z") {
      usleep(1000);
      std::ifstream(absl::StrCat("/proc/", script_->pid(), "/stat")) >> number >> name >> state;
    }
    kill(script_->pid(), SIGCONT);
  }
  void Send(uint32_t kind, const std::string& payload = "", int fd = -1, uint64_t bytes = 0) {
    tc_header header = {};
    header.kind = kind;
    header.bytes = bytes;
    EXPECT_TRUE(channel_->Send(header, payload, fd).ok());
  }
  void SendState(const std::string& state) {
    absl::StatusOr<SharedMemory> memory = SharedMemory::Create(state.size());
    ASSERT_TRUE(memory.ok());
    std::memcpy(memory->data(), state.data(), state.size());
    Send(TC_LOAD, "", memory->fd(), state.size());
  }

  template <typename T>
  static void Put(tc_array_kind kind, uint32_t index, const std::vector<T>& values,
                  SlotLayout* layout, std::string* bytes) {
    const size_t offset = layout->Add(kind, index, values.size(), sizeof(T));
    bytes->resize(layout->bytes());
    std::memcpy(bytes->data() + offset, values.data(), values.size() * sizeof(T));
  }
  SentBatch SendBatch(int64_t step, const LinearBatch& batch, uint32_t flags = 0,
                      bool is_last = false) {
    SlotLayout layout;
    std::string bytes;
    Put(TC_NUMERIC, 0, batch.numeric, &layout, &bytes);
    Put(TC_LABELS, 0, batch.labels, &layout, &bytes);
    Put(TC_ROWS, 0, batch.rows, &layout, &bytes);
    Put(TC_INDICES, 0, batch.single, &layout, &bytes);
    Put(TC_INDICES, 1, batch.list, &layout, &bytes);
    Put(TC_OFFSETS, 1, batch.offsets, &layout, &bytes);
    Put(TC_LOOKUP_WEIGHTS, 1, batch.list_weights, &layout, &bytes);
    SentBatch sent;
    sent.gradients = layout.Add(TC_GRADIENTS, 0, batch.rows.size(), sizeof(float));
    sent.has_gradient = layout.Add(TC_HAS_GRADIENT, 0, batch.num_rows(), 1);
    sent.scores = layout.Add(TC_SCORES_ARRAY, 0, batch.size(), sizeof(float));
    if (is_last) sent.own_metric = layout.Add(TC_OWN_METRIC, 0, 1, sizeof(float));
    const absl::StatusOr<uint32_t> slot = channel_->TakeSlot(layout.bytes());
    EXPECT_TRUE(slot.ok()) << slot.status();
    sent.slot = *slot;
    std::memset(channel_->slot(sent.slot), 0x77, layout.bytes());
    std::memcpy(channel_->slot(sent.slot), bytes.data(), bytes.size());
    tc_header header = {};
    header.step = step;
    header.bytes = batch.size();
    header.flags = flags;
    EXPECT_TRUE(channel_->SendBatch(sent.slot, header, layout).ok());
    return sent;
  }
  template <typename T>
  std::vector<T> Get(const SentBatch& sent, size_t offset, size_t count) const {
    std::vector<T> values(count);
    std::memcpy(values.data(), channel_->slot(sent.slot) + offset, count * sizeof(T));
    return values;
  }
  // One step of the script, which has to compute what `model` does. Returns the batch's slot.
  uint32_t TrainStep(int64_t step, LinearModel* model) {
    const LinearBatch batch = MakeBatch(step);
    const SentBatch sent = SendBatch(step, batch);
    const ScriptMessage answer = Expect(TC_STEP);
    const auto [gradients, loss] = model->Train(batch);
    EXPECT_EQ(answer.header.slot, sent.slot);
    EXPECT_EQ(answer.header.step, step);
    EXPECT_FLOAT_EQ(static_cast<float>(answer.header.value), static_cast<float>(loss));
    if (step % 2 == 1) {
      EXPECT_EQ(answer.header.rate, 0.125f);
    } else {
      EXPECT_TRUE(std::isnan(answer.header.rate));
    }
    EXPECT_EQ(answer.header.flags, step == 4 ? uint32_t{TC_SKIPS} : 0u);
    EXPECT_EQ(Get<float>(sent, sent.gradients, gradients.size()), gradients) << step;
    // The last row is there and was not looked up.
    EXPECT_THAT(Get<uint8_t>(sent, sent.has_gradient, 4), ElementsAre(1, 1, 1, 0));
    return sent.slot;
  }
  std::string Save() {
    Send(TC_SAVE);
    return Expect(TC_STATE).state;
  }
  std::unique_ptr<ScriptProcess> script_;
  std::unique_ptr<ScriptChannel> channel_;
  int socket_ = -1;  // The channel's.
};

TEST_F(LinearScriptTest, TrainsAndIsEvaluated) {
  Start("train");
  Connect();
  LinearModel model;
  std::vector<uint32_t> slots;
  for (int64_t step = 0; step < 6; ++step) slots.push_back(TrainStep(step, &model));
  // The script keeps the first batch until the third step is closed. The others take turns: one is
  // in the script's hands while its word that it has released another is on its way.
  EXPECT_EQ(slots[0], 0u);
  EXPECT_NE(slots[1], 0u);
  EXPECT_NE(slots[2], 0u);
  for (const uint32_t slot : slots) EXPECT_LT(slot, 3u);
  Send(TC_PHASE, "{\"phase\": \"trained\"}");
  Expect(TC_EVALUATE);
  for (const bool is_last : {false, true}) {
    const LinearBatch held_out = MakeBatch(100 + is_last);
    const SentBatch sent = SendBatch(100 + is_last, held_out, TC_EVALUATES, is_last);
    EXPECT_EQ(Expect(TC_SCORES).header.slot, sent.slot);
    const std::vector<float> scores = Get<float>(sent, sent.scores, held_out.size());
    for (size_t i = 0; i < scores.size(); ++i) EXPECT_EQ(scores[i], model.Logit(held_out, i));
    if (!is_last) continue;
    EXPECT_THAT(Get<float>(sent, sent.own_metric, 1),
                ElementsAre(*std::max_element(scores.begin(), scores.end())));
  }
  Send(TC_PHASE, "{\"phase\": \"evaluated\", \"metrics\": {\"auc\": 0.5}}");
  Expect(TC_DONE);
  EXPECT_EQ(WaitForEnd(), 0);
}

TEST_F(LinearScriptTest, GoesOnFromItsState) {
  LinearModel model;
  Start("train");
  Connect();
  for (int64_t step = 0; step < 3; ++step) TrainStep(step, &model);
  const std::string state = Save();
  ASSERT_EQ(state.size(), sizeof(model));
  EXPECT_EQ(std::memcmp(state.data(), &model, sizeof(model)), 0);
  script_.reset();
  Start("train");
  Connect();
  SendState(state);
  for (int64_t step = 3; step < 6; ++step) TrainStep(step, &model);
  EXPECT_NE(Save(), state);
  Send(TC_END, "that is all");
  EXPECT_EQ(WaitForEnd(), 10) << "A script that takes the end for an event fails.";
}

TEST_F(LinearScriptTest, MisuseIsRefused) {
  Start("misuse");
  Connect();
  Expect(TC_EVALUATE);  // After it has waited for nothing.
  SendBatch(7, MakeBatch(7));
  EXPECT_EQ(Expect(TC_STEP).header.step, 7);
  const SentBatch scored = SendBatch(8, MakeBatch(8), TC_EVALUATES);
  EXPECT_EQ(Expect(TC_SCORES).header.slot, scored.slot);
  EXPECT_EQ(Save(), "");
  SendState("");
  Send(TC_END, "the job was stopped by its user");
  EXPECT_EQ(WaitForEnd(), 0);
}

TEST_F(LinearScriptTest, AChildCannotConnectInPlaceOfTheScript) {
  Start("child");
  Connect();
  Expect(TC_DONE);
  EXPECT_EQ(WaitForEnd(), 0);
}

TEST_F(LinearScriptTest, ConnectsOncePerWay) {
  Start("again");
  Connect();
  Connect();
  Expect(TC_DONE);
  EXPECT_EQ(WaitForEnd(), 0);
}

TEST_F(LinearScriptTest, NothingToConnectTo) {
  Start("nothing");
  EXPECT_EQ(WaitForEnd(), 0);
}

TEST_F(LinearScriptTest, ConnectsOnceTheWorkerHasSentSomething) {
  Start("early");
  WaitForStop();
  Connect();
  Expect(TC_DONE);
  EXPECT_EQ(WaitForEnd(), 0);
}

TEST_F(LinearScriptTest, AStateThatWaitsForRoomIsCopiedOnce) {
  Start("slow");
  Connect();
  Send(TC_SAVE);
  WaitForStop();
  ScriptMessage message;
  do {
    absl::StatusOr<ScriptMessage> next = channel_->Receive([] { return absl::OkStatus(); });
    ASSERT_TRUE(next.ok()) << next.status();
    message = *std::move(next);
  } while (message.header.kind == TC_WARNING);
  EXPECT_EQ(message.header.kind, TC_STATE);
  EXPECT_EQ(message.state, "state");
  Expect(TC_DONE);
  EXPECT_EQ(WaitForEnd(), 0);
}

// The message of a script that could not connect, and its exit code, which is the status.
class RefusedScriptTest : public LinearScriptTest {
 protected:
  std::string WordsOf(tc_message_kind kind, const std::string& payload, uint32_t protocol,
                      bool has_job, int expected) {
    const std::string path = absl::StrCat(testing::TempDir(), "/refused.", getpid(), ".log");
    ScriptProcessOptions options;
    options.command = {"sh", "-c", absl::StrCat("exec ", kScript, " refused 2>", path)};
    script_ = *ScriptProcess::Start(options);
    ScriptChannelOptions channel;
    channel.fd = script_->TakeSocket();
    channel_ = std::make_unique<ScriptChannel>(channel);
    absl::StatusOr<SharedMemory> job = SharedMemory::Create(1);
    tc_header header = {};
    header.kind = kind;
    header.count = protocol;
    EXPECT_TRUE(channel_->Send(header, payload, has_job ? job->fd() : -1).ok());
    EXPECT_EQ(WaitForEnd(), expected);
    std::ifstream file(path);
    std::string words;
    std::getline(file, words);
    script_.reset();
    return words;
  }
};

TEST_F(RefusedScriptTest, AWorkerOfAnotherBuild) {
  EXPECT_THAT(
      WordsOf(TC_HELLO, "9.8.7", TC_PROTOCOL, true, 3),
      HasSubstr(
          "the worker is of version 9.8.7 and this script's library of " THERMOCLINE_VERSION));
  EXPECT_THAT(WordsOf(TC_HELLO, THERMOCLINE_VERSION, TC_PROTOCOL + 1, true, 3),
              HasSubstr("both must be of one build"));
  EXPECT_THAT(WordsOf(TC_HELLO, "", TC_PROTOCOL, false, 3), HasSubstr("one build"));
  EXPECT_THAT(WordsOf(TC_BATCH, THERMOCLINE_VERSION, TC_PROTOCOL, false, 3),
              HasSubstr("of version (unknown)"));
}

TEST_F(RefusedScriptTest, AWorkerThatEndsOrSendsNoJob) {
  EXPECT_EQ(WordsOf(TC_END, "the job is stopped", 0, false, 2), "the job is stopped");
  EXPECT_THAT(WordsOf(TC_HELLO, THERMOCLINE_VERSION, TC_PROTOCOL, false, 4),
              HasSubstr("without the memory that belongs to it"));
}

// A memory file of any size, also one that is not sealed.
int MemoryFile(size_t bytes, bool is_sealed) {
  const int fd = memfd_create("garbage", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, is_sealed ? F_SEAL_SHRINK : 0), 0);
  return fd;
}

TEST_F(LinearScriptTest, AMessageThatBreaksTheProtocolIsTrouble) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  Start("trouble");
  Connect();
  int expected = 0;
  for (const uint32_t kind : {0u, 7u, static_cast<uint32_t>(TC_HELLO), ~0u}) {
    Send(kind, "words", fds[0]);
    ++expected;
  }
  Send(TC_BATCH);           // A slot without memory.
  Send(TC_BATCH, "place");  // Another count of places.
  Send(TC_LOAD);            // No file.
  Send(TC_LOAD, "", fds[0], 1);
  expected += 4;
  const absl::StatusOr<SharedMemory> small = SharedMemory::Create(10);
  Send(TC_LOAD, "", small->fd(), 11);  // Less than it says.
  const int unsealed = MemoryFile(10, false);
  Send(TC_LOAD, "", unsealed, 10);  // It could shrink while it is read.
  close(unsealed);
  expected += 2;
  tc_header header = {};
  header.kind = TC_BATCH;
  header.slot = TC_MAX_SLOTS;
  EXPECT_TRUE(channel_->Send(header, "", small->fd()).ok());
  ++expected;
  const absl::StatusOr<SharedMemory> slot = SharedMemory::Create(256);
  const uint64_t most = ~uint64_t{0};
  for (const tc_array_place& place : std::vector<tc_array_place>{
           {TC_ROWS, 0, 64, 49},             // One element too many.
           {TC_ROWS, 0, 64, most / 4 + 17},  // Overflows to a small size in bytes.
           {TC_ROWS, 0, 320, 0},
           {TC_ROWS, 0, most - 63, 16},
           {TC_ROWS, 0, 4, 1},  // Not aligned.
           {TC_HAS_GRADIENT, 0, 0, 257},
           {TC_LABELS, 0, 0, 2},  // The batch has 3 samples.
           {TC_WEIGHTS, 0, 0, 4},
           {TC_SCORES_ARRAY, 0, 0, 0},
           {TC_OFFSETS, 0, 0, 3},
           {TC_OWN_METRIC, 0, 0, 2}}) {
    header = {};
    header.kind = TC_BATCH;
    header.bytes = 3;
    header.count = 1;
    const std::string payload(reinterpret_cast<const char*>(&place), sizeof(place));
    EXPECT_TRUE(channel_->Send(header, payload, slot->fd()).ok());
    ++expected;
  }
  channel_.reset();
  EXPECT_EQ(WaitForEnd(), expected);
  close(fds[0]);
  close(fds[1]);
}

// Messages of random kinds, sizes, places and descriptors; some of them are right by chance.
class Garbage {
 public:
  explicit Garbage(uint32_t seed) : random_(seed) {}

  // Sends one of them. False: the script has ended.
  bool Send(int socket) {
    const std::string payload = Payload();
    tc_header header = {};
    header.kind = OneIn(8) ? Any() : Below(5) + TC_BATCH;
    if (OneIn(2)) header.kind = TC_BATCH;
    header.slot = OneIn(16) ? Any() : Below(4);
    header.step = Any();
    header.bytes = header.kind == TC_LOAD ? Below(1200) : OneIn(8) ? AnyLong() : kSamples;
    header.count =
        OneIn(8) ? Any() : static_cast<uint32_t>(payload.size() / sizeof(tc_array_place));
    header.flags = Below(4);
    if (header.kind == TC_END) header.kind = TC_SAVE;
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
    bytes += payload;
    // A message of no bytes would be the end of the connection.
    if (OneIn(20)) bytes.resize(1 + Below(static_cast<uint32_t>(bytes.size() - 1)));
    std::vector<int> fds;
    const uint32_t count = OneIn(20) ? Below(20) : OneIn(4) ? 0 : 1;
    for (uint32_t i = 0; i < count; ++i) fds.push_back(Descriptor());
    const bool sent = SendBytes(socket, bytes, fds);
    for (const int fd : fds) close(fd);
    return sent;
  }

  static bool SendBytes(int socket, const std::string& bytes, const std::vector<int>& fds) {
    const MessageWithDescriptors message(bytes, fds);
    char answers[256];
    while (sendmsg(socket, message.get(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      if (errno != EAGAIN) return false;
      while (recv(socket, answers, sizeof(answers), MSG_DONTWAIT) > 0) {
      }
      pollfd room = {socket, POLLIN | POLLOUT, 0};
      poll(&room, 1, 1000);
    }
    while (recv(socket, answers, sizeof(answers), MSG_DONTWAIT) > 0) {
    }
    return true;
  }

 private:
  static constexpr uint64_t kSamples = 5;

  uint32_t Any() { return static_cast<uint32_t>(random_()); }
  uint64_t AnyLong() { return uint64_t{Any()} << 32 | Any(); }
  uint32_t Below(uint32_t limit) { return limit == 0 ? 0 : Any() % limit; }
  bool OneIn(uint32_t n) { return Below(n) == 0; }

  std::string Payload() {
    std::string payload;
    for (uint32_t places = Below(4); places > 0; --places) {
      tc_array_place place = {};
      place.kind = Below(17);
      place.index = Below(4);
      place.offset = OneIn(16) ? AnyLong() : Below(8) * 64;
      place.count = OneIn(16)  ? AnyLong()
                    : OneIn(8) ? (~uint64_t{0} - place.offset) / 4
                    : OneIn(2) ? kSamples + Below(2)
                               : Below(200);
      payload.append(reinterpret_cast<const char*>(&place), sizeof(place));
    }
    return payload;
  }
  int Descriptor() {
    switch (Below(12)) {
      case 0:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
      case 1:
        return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      case 2:
        return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
      case 3:
        return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
      case 4:
        return MemoryFile(Below(1000), false);
      case 5:
        return MemoryFile(0, true);
      default:
        return MemoryFile(Below(10000), true);
    }
  }

  std::mt19937 random_;
};

TEST_F(LinearScriptTest, GarbageOfTheWorkerDoesNotCrashTheScript) {
  constexpr uint32_t kSeed = 25;
  Start("garbage");
  const int socket = dup(socket_);
  Connect();
  Garbage garbage(kSeed);
  int sent = 0;
  while (sent < 4000 && garbage.Send(socket)) ++sent;
  EXPECT_EQ(sent, 4000);
  tc_header end = {};
  end.kind = TC_END;
  const std::string header(reinterpret_cast<const char*>(&end), sizeof(end));
  EXPECT_TRUE(Garbage::SendBytes(socket, header + "that is all", {}));
  EXPECT_EQ(WaitForEnd(), 0) << "seed " << kSeed << "; the script " << script_->DescribeEnd();
  close(socket);
}

TEST_F(LinearScriptTest, ATracebackIsCutAtItsBeginning) {
  Start("fail");
  ASSERT_EQ(kill(script_->pid(), SIGSTOP), 0);
  ASSERT_TRUE(channel_->SendHello(kJob).ok());
  Send(TC_SAVE);  // The script ends without having read it.
  ASSERT_EQ(kill(script_->pid(), SIGCONT), 0);
  Expect(TC_READY);
  EXPECT_EQ(Expect(TC_WARNING).payload, "careful");
  const ScriptMessage failed = Expect(TC_FAILED);
  EXPECT_EQ(failed.payload.size(), TC_PAYLOAD_BYTES);
  EXPECT_EQ(failed.payload.substr(failed.payload.size() - 11), ".ValueError");
  EXPECT_EQ(channel_->Receive([] { return absl::OkStatus(); }).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(WaitForEnd(), 5);
}

}  // namespace
}  // namespace thermocline
