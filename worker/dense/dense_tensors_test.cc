#include "worker/dense/dense_tensors.h"

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/base/hash.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/virtual_scheduler.h"
#include "worker/session/testing/fake_transport.h"

namespace thermocline {
namespace {

DenseTable Tensor(uint32_t id, int rows) {
  DenseTable tensor;
  tensor.layout.id = TableId(id);
  tensor.layout.name = "tensor" + std::to_string(id);
  tensor.layout.dim = kDenseBlockFloats;
  tensor.layout.optimizer.kind = OptimizerKind::kAdagrad;  // One float of state a weight.
  tensor.layout.init_scale = 0.1f;
  tensor.layout.role = TableRole::kDense;
  tensor.rows = rows;
  tensor.cols = kDenseBlockFloats;
  return tensor;
}

// One server, so that values in wire order have the arenas' order.
class DenseParametersTest : public ::testing::Test {
 protected:
  DenseParametersTest() {
    session_options_.num_servers = 1;
    for (const DenseTable& tensor : tensors_) session_options_.tables.push_back(tensor.layout);
    session_ = std::make_unique<PsSession>(session_options_, &transport_, &scheduler_);
    std::iota(gradients_.begin(), gradients_.end(), 1.0f);
    context_.batch = std::make_unique<Batch>();
    context_.batch->step = Step(0);
    context_.learning_rate = 0.5f;
    context_.Begin(std::make_unique<StepTransfers>(device_.get()));
  }
  void TearDown() override {
    session_->Fail(absl::CancelledError("the test is over"));
    while (!transport_.pulls.empty()) transport_.AnswerPull(absl::CancelledError(""));
    while (!transport_.pushes.empty()) transport_.AnswerPush(absl::CancelledError(""));
  }

  std::unique_ptr<DenseTensors> Make(uint32_t num_workers) {
    const auto span = [](std::vector<float>& floats) -> DeviceSpan<float> {
      return {floats.data(), static_cast<int64_t>(floats.size())};
    };
    auto dense = std::make_unique<DenseTensors>(
        &blocks_, DenseArenas{span(weights_), span(state_), span(gradients_)}, num_workers,
        /*slices=*/nullptr, device_.get(), session_.get());
    dense->Initialize(/*seed=*/7);
    return dense;
  }
  // Adds to a push that has a wave without rows. Returns the number of waves.
  size_t AddPush(DenseTensors* dense) {
    context_.push = StepPush();
    context_.push.work.step = context_.step();
    context_.push.work.waves.emplace_back(1);
    StepTasks tasks;
    dense->AddPush(&context_, &tasks);
    EXPECT_TRUE(tasks.empty());
    return context_.push.work.waves.size();
  }
  absl::Status FinishPush(DenseTensors* dense) {
    StepTasks tasks;
    dense->FinishPush(&context_, &tasks);
    return RunAll(&tasks, /*exchange=*/nullptr);
  }
  absl::Status Push(DenseTensors* dense) {
    EXPECT_EQ(AddPush(dense), 2u);
    session_->StartPush(std::move(context_.push.work), [](const absl::Status&) {});
    EXPECT_TRUE(session_->ReleaseWave(context_.step(), 0).ok());
    EXPECT_TRUE(transport_.pushes.empty()) << "the last wave is not released yet";
    return FinishPush(dense);
  }
  // The values of the pushes that the server has got.
  std::vector<float> Pushed() const {
    std::vector<float> values;
    for (const FakeTransport::PushSeen& push : transport_.pushes) {
      for (const wire::PushSlice& slice : push.call.tables) {
        values.insert(values.end(), slice.values.begin(), slice.values.end());
      }
    }
    return values;
  }

  const std::vector<DenseTable> tensors_ = {Tensor(3, 2), Tensor(4, 1)};
  const DenseBlocks blocks_{tensors_, ClusterMap(1)};
  std::vector<float> weights_ = std::vector<float>(blocks_.arena_floats());
  std::vector<float> state_ = std::vector<float>(blocks_.arena_floats());
  std::vector<float> gradients_ = std::vector<float>(blocks_.arena_floats());
  const std::unique_ptr<Device> device_ = MakeCpuDevice({});
  VirtualScheduler scheduler_;
  FakeTransport transport_;
  PsSessionOptions session_options_;
  std::unique_ptr<PsSession> session_;
  StepContext context_;
};

TEST_F(DenseParametersTest, SeveralWorkersPullWeightsAndPushGradients) {
  const auto dense = Make(/*num_workers=*/2);
  EXPECT_EQ(dense->home(), DenseParameters::Home::kServers);
  context_.pulls.Begin(/*num_servers=*/1);
  dense->AddPulls(&context_);
  const PullsByServer pulled = context_.pulls.work(StepPulls::kLatest).slices;
  std::vector<float> expected;
  for (const PullSlice& slice : pulled[0]) {
    std::iota(slice.rows.begin(), slice.rows.end(), static_cast<float>(expected.size()));
    expected.insert(expected.end(), slice.rows.begin(), slice.rows.end());
  }
  ASSERT_EQ(expected.size(), weights_.size());
  EXPECT_NE(weights_, expected);
  StepTasks tasks;
  dense->Receive(&context_, &tasks);
  ASSERT_TRUE(RunAll(&tasks, /*exchange=*/nullptr).ok());
  EXPECT_EQ(weights_, expected);
  dense->Update(&context_);
  EXPECT_EQ(weights_, expected) << "the servers update them";

  const absl::Status pushed = Push(dense.get());
  EXPECT_TRUE(pushed.ok()) << pushed;
  EXPECT_EQ(Pushed(), gradients_);
}

TEST_F(DenseParametersTest, OneWorkerUpdatesThemAndPushesRowsWhereTheStepWritesBack) {
  const auto dense = Make(/*num_workers=*/1);
  EXPECT_EQ(dense->home(), DenseParameters::Home::kHere);
  context_.pulls.Begin(/*num_servers=*/1);
  dense->AddPulls(&context_);
  EXPECT_TRUE(context_.pulls.work(StepPulls::kLatest).slices[0].empty());
  const std::vector<float> initial = weights_;
  dense->Update(&context_);
  for (size_t i = 0; i < weights_.size(); ++i) ASSERT_LT(weights_[i], initial[i]) << i;
  EXPECT_EQ(AddPush(dense.get()), 1u);
  EXPECT_TRUE(FinishPush(dense.get()).ok());

  context_.writes_back = true;
  const absl::Status pushed = Push(dense.get());
  EXPECT_TRUE(pushed.ok()) << pushed;
  std::vector<float> rows(blocks_.num_blocks() * blocks_.row_floats());
  blocks_.StageRows(weights_, state_, absl::MakeSpan(rows));
  EXPECT_EQ(Pushed(), rows);
}

TEST_F(DenseParametersTest, ABadGradientIsNamedByStepAndTensor) {
  const auto dense = Make(/*num_workers=*/1);
  gradients_[2 * kDenseBlockFloats + 5] = std::nanf("");
  dense->Update(&context_);
  EXPECT_EQ(AddPush(dense.get()), 1u);
  const absl::Status pushed = FinishPush(dense.get());
  EXPECT_EQ(pushed.code(), absl::StatusCode::kInvalidArgument) << pushed;
  EXPECT_NE(pushed.message().find("step 0: a gradient of 'tensor4' is not finite"),
            std::string::npos)
      << pushed;
}

}  // namespace
}  // namespace thermocline
