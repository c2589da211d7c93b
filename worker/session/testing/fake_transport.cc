#include "worker/session/testing/fake_transport.h"

#include "absl/types/span.h"
#include "worker/session/transport.h"

namespace thermocline {

PsSessionOptions PsSessionTest::Options() {
  PsSessionOptions options;
  options.job_id = "job";
  options.generation = 3;
  options.rank = WorkerRank(1);
  options.num_servers = 2;
  options.staleness_steps = 2;
  options.max_chunk_bytes = kMaxHeaderBytes + kMaxSliceHeaderBytes + 100;
  TableLayout table;
  table.id = TableId(4);
  table.name = "C4";
  table.dim = 2;
  table.optimizer.kind = OptimizerKind::kAdagrad;  // Rows of 4 floats.
  options.tables = {table};
  return options;
}

std::shared_ptr<std::optional<absl::Status>> PsSessionTest::Pull(
    int64_t step, const std::vector<size_t>& per_server, wire::PullKind kind) {
  PullWork work;
  work.kind = kind;
  work.step = Step(step);
  work.after_step = Step(step - 1);
  for (const size_t n : per_server) {
    work.slices.emplace_back();
    if (n == 0) continue;
    work.slices.back().push_back({TableId(4), absl::MakeConstSpan(keys_).subspan(0, n),
                                  absl::MakeSpan(rows_).subspan(0, 2 * n)});
  }
  auto result = std::make_shared<std::optional<absl::Status>>();
  session_.Pull(std::move(work), [this, result](absl::Status status, Step through) {
    EXPECT_FALSE(result->has_value());
    *result = std::move(status);
    pulled_through_ = through;
  });
  return result;
}

PushWork PsSessionTest::WorkOf(int64_t step, const std::vector<std::vector<size_t>>& waves) const {
  PushWork work;
  work.step = Step(step);
  work.learning_rate = 0.5f;
  size_t used = 0;
  for (const std::vector<size_t>& wave : waves) {
    work.waves.emplace_back();
    for (const size_t n : wave) {
      work.waves.back().emplace_back();
      if (n == 0) continue;
      work.waves.back().back().push_back({TableId(4), wire::PushKind::kGradient,
                                          absl::MakeConstSpan(keys_).subspan(used, n),
                                          absl::MakeConstSpan(counts_).subspan(used, n),
                                          absl::MakeConstSpan(rows_).subspan(2 * used, 2 * n)});
      used += n;
    }
  }
  return work;
}

std::shared_ptr<std::optional<absl::Status>> PsSessionTest::Start(PushWork work) {
  auto result = std::make_shared<std::optional<absl::Status>>();
  session_.StartPush(std::move(work), [result](absl::Status status) {
    EXPECT_FALSE(result->has_value());
    *result = std::move(status);
  });
  return result;
}

std::shared_ptr<std::optional<absl::Status>> PsSessionTest::Push(
    int64_t step, const std::vector<std::vector<size_t>>& waves, bool release) {
  auto result = Start(WorkOf(step, waves));
  for (size_t wave = 0; release && wave < waves.size(); ++wave) {
    EXPECT_TRUE(session_.ReleaseWave(Step(step), wave).ok());
  }
  return result;
}

std::shared_ptr<std::optional<absl::Status>> PsSessionTest::LendingPush(
    int64_t step, const std::vector<std::vector<size_t>>& waves) {
  PushWork work = WorkOf(step, waves);
  work.lent.assign(waves.size(), true);
  work.lent.back() = false;
  work.on_returned = [this](size_t wave) { returned_.push_back(wave); };
  work.on_wanted = [this](size_t wave) { wanted_.push_back(wave); };
  return Start(std::move(work));
}

void PsSessionTest::TearDown() {
  session_.Fail(absl::CancelledError("the test is over"));
  while (!transport_.pulls.empty()) transport_.AnswerPull(absl::CancelledError(""));
  while (!transport_.pushes.empty()) transport_.AnswerPush(absl::CancelledError(""));
}

}  // namespace thermocline
