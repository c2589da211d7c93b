#include "worker/dense/dense_slices.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/scheduler.h"
#include "common/math/gradient_merge.h"
#include "gtest/gtest.h"
#include "worker/exchange/testing/local_exchange.h"

namespace thermocline {
namespace {

std::vector<DenseTable> Tensors(OptimizerKind kind) {
  std::vector<DenseTable> tensors;
  for (const auto& [id, rows] : {std::pair(3, 13), std::pair(4, 1), std::pair(5, 31)}) {
    DenseTable tensor;
    tensor.layout.id = TableId(id);
    tensor.layout.name = absl::StrCat("tensor", id);
    tensor.layout.dim = kDenseBlockFloats;
    tensor.layout.optimizer.kind = kind;
    tensor.layout.init_scale = 0.1f;
    tensor.layout.role = TableRole::kDense;
    tensor.rows = rows;
    tensor.cols = kDenseBlockFloats;
    tensors.push_back(tensor);
  }
  return tensors;
}

struct Parameters {
  std::vector<float> weights, state;
};

Parameters InitialParameters(const DenseBlocks& blocks) {
  Parameters parameters = {
      std::vector<float>(blocks.arena_floats()),
      std::vector<float>(blocks.arena_floats() / kDenseBlockFloats * blocks.state_floats())};
  blocks.Initialize(/*seed=*/9, absl::MakeSpan(parameters.weights),
                    absl::MakeSpan(parameters.state));
  return parameters;
}

// Makes the gradients of one rank in one step. Some are -0. A rank without a sample has zeros.
std::vector<float> Gradients(size_t floats, uint32_t rank, int64_t step) {
  std::vector<float> gradients(floats);
  if ((rank + step) % 5 == 4) return gradients;
  std::mt19937 random(100 * rank + step);
  std::uniform_real_distribution<float> value(-1, 1);
  for (float& gradient : gradients) gradient = random() % 8 == 0 ? -0.0f : value(random);
  return gradients;
}

// As servers do it: the keys' gradients are merged in rank order, and each key gets one update.
void UpdateAsServersDo(const DenseBlocks& blocks, int64_t step, uint32_t num_ranks,
                       const UpdateScalars& scalars, Parameters* parameters) {
  std::vector<Key> keys(blocks.num_blocks());
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  const std::vector<uint32_t> counts(keys.size());
  std::vector<std::vector<float>> of_ranks;
  std::vector<GradientBlock> pushed;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    of_ranks.push_back(Gradients(blocks.arena_floats(), rank, step));
    pushed.push_back({keys, counts, of_ranks.back()});
  }
  GradientMerge merge;
  merge.Run(pushed, kDenseBlockFloats);
  for (size_t i = 0; i < keys.size(); ++i) {
    const Key key = merge.result().keys[i];
    UpdateRow(scalars, &merge.result().gradients[i * kDenseBlockFloats], /*lookups=*/0,
              &parameters->weights[key * kDenseBlockFloats],
              parameters->state.data() + key * blocks.state_floats(), kDenseBlockFloats);
  }
}

class DenseSlicesTest : public testing::TestWithParam<OptimizerKind> {
 protected:
  void Join(uint32_t num_ranks) {
    ExchangeOptions options;
    options.phases = kDensePhases;
    exchanges_ = MakeLocalExchanges(num_ranks, options, &scheduler_);
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      slices_.push_back(
          std::make_unique<DenseSlices>(tensors_, ClusterMap(3), exchanges_[rank].get()));
    }
  }
  UpdateScalars AnyScalars() const {
    return ScalarsForStep(tensors_[0].layout.optimizer, 0.1f, Step(0));
  }
  // On a thread for each rank.
  void AtEveryRank(const std::function<void(uint32_t rank)>& run) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < exchanges_.size(); ++rank) threads.emplace_back(run, rank);
    for (std::thread& thread : threads) thread.join();
  }

  const std::vector<DenseTable> tensors_ = Tensors(GetParam());
  const DenseBlocks blocks_{tensors_, ClusterMap(1)};
  ThreadScheduler scheduler_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::vector<std::unique_ptr<DenseSlices>> slices_;
};

TEST_P(DenseSlicesTest, GiveTheBitsOfServersAtEveryRank) {
  constexpr int64_t kSteps = 6;
  const OptimizerConfig optimizer = tensors_[0].layout.optimizer;
  const auto scalars = [&](int64_t step) { return ScalarsForStep(optimizer, 0.1f, Step(step)); };
  for (const uint32_t num_ranks : {2u, 3u, 5u, 8u}) {
    SCOPED_TRACE(num_ranks);
    slices_.clear();
    Join(num_ranks);
    Parameters expected = InitialParameters(blocks_);
    for (int64_t step = 0; step < kSteps; ++step) {
      UpdateAsServersDo(blocks_, step, num_ranks, scalars(step), &expected);
    }
    std::vector<Parameters> of_ranks(num_ranks, InitialParameters(blocks_));
    AtEveryRank([&](uint32_t rank) {
      Parameters& own = of_ranks[rank];
      for (int64_t step = 0; step < kSteps; ++step) {
        const std::vector<float> gradients = Gradients(own.weights.size(), rank, step);
        ASSERT_TRUE(slices_[rank]->PostGradients(Step(step), step + 1 == kSteps, gradients).ok());
        const absl::Status updated =
            slices_[rank]->UpdateOwn(Step(step), scalars(step), gradients,
                                     absl::MakeSpan(own.weights), absl::MakeSpan(own.state));
        ASSERT_TRUE(updated.ok()) << updated;
        const absl::Status received =
            slices_[rank]->ReceiveWeights(Step(step), absl::MakeSpan(own.weights));
        ASSERT_TRUE(received.ok()) << received;
      }
    });
    int64_t owned = 0;
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      EXPECT_EQ(std::memcmp(of_ranks[rank].weights.data(), expected.weights.data(),
                            expected.weights.size() * sizeof(float)),
                0)
          << rank;
      // What it writes back: the rows of its slice, with their state.
      const DenseBlocks& slice = slices_[rank]->own();
      std::vector<float> rows(slice.num_blocks() * slice.row_floats()), expected_rows(rows.size());
      slice.StageRows(of_ranks[rank].weights, of_ranks[rank].state, absl::MakeSpan(rows));
      slice.StageRows(expected.weights, expected.state, absl::MakeSpan(expected_rows));
      EXPECT_EQ(rows, expected_rows);
      owned += slice.num_blocks();
    }
    EXPECT_EQ(owned, blocks_.num_blocks());
  }
}

TEST_P(DenseSlicesTest, ASumThatIsNotFiniteNamesStepAndTensor) {
  Join(2);
  constexpr size_t kBadBlock = 13;  // The only one of tensor4.
  int named = 0;
  std::vector<absl::Status> ends(2);
  AtEveryRank([&](uint32_t rank) {
    Parameters own = InitialParameters(blocks_);
    std::vector<float> gradients(own.weights.size());
    gradients[kBadBlock * kDenseBlockFloats + 7] = std::numeric_limits<float>::max();
    ASSERT_TRUE(slices_[rank]->PostGradients(Step(0), false, gradients).ok());
    ends[rank] = slices_[rank]->UpdateOwn(Step(0), AnyScalars(), gradients,
                                          absl::MakeSpan(own.weights), absl::MakeSpan(own.state));
  });
  for (const absl::Status& end : ends) {
    if (end.ok()) continue;
    ++named;
    EXPECT_EQ(end.code(), absl::StatusCode::kInvalidArgument) << end;
    EXPECT_TRUE(absl::StrContains(
        end.message(), "step 0: a sum of the workers' gradients of 'tensor4' is not finite"))
        << end;
  }
  EXPECT_EQ(named, 1) << "at its owner alone";
}

TEST_P(DenseSlicesTest, DataThatEndAtDifferentStepsAreNamed) {
  Join(3);
  AtEveryRank([&](uint32_t rank) {
    Parameters own = InitialParameters(blocks_);
    const std::vector<float> gradients(own.weights.size());
    ASSERT_TRUE(slices_[rank]->PostGradients(Step(0), /*ends_data=*/rank == 2, gradients).ok());
    const absl::Status end = slices_[rank]->UpdateOwn(
        Step(0), AnyScalars(), gradients, absl::MakeSpan(own.weights), absl::MakeSpan(own.state));
    EXPECT_EQ(end.code(), absl::StatusCode::kInvalidArgument) << end;
    EXPECT_TRUE(absl::StrContains(end.message(),
                                  "the workers see different data: those of rank 2 end with step "
                                  "0, those of rank 0 do not"))
        << end;
  });
}

TEST_P(DenseSlicesTest, OtherFilesAreFoundInTheFirstStep) {
  ExchangeOptions options;
  options.phases = kDensePhases;
  exchanges_ = MakeLocalExchanges(3, options, &scheduler_);
  AtEveryRank([&](uint32_t rank) {
    DenseSlices slices(tensors_, ClusterMap(3), exchanges_[rank].get(),
                       absl::StrCat(rank == 1 ? 2 : 1, " files"));
    Parameters own = InitialParameters(blocks_);
    const std::vector<float> gradients(own.weights.size());
    ASSERT_TRUE(slices.PostGradients(Step(0), false, gradients).ok());
    EXPECT_EQ(slices.UpdateOwn(Step(0), AnyScalars(), gradients, absl::MakeSpan(own.weights),
                               absl::MakeSpan(own.state)),
              absl::InvalidArgumentError(absl::StrCat(
                  "the workers see different data: those of rank 1 are not those of rank 0; rank ",
                  rank, " has ", rank == 1 ? 2 : 1, " files")));
  });
}

TEST_P(DenseSlicesTest, ABlockOfAnotherSizeNamesItsSender) {
  Join(2);
  std::vector<float> weights(blocks_.arena_floats()), state;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const Block empty = MakeBlock<float>({});
    for (const Phase phase : {Phase::kDenseGradients, Phase::kDenseWeights}) {
      ASSERT_TRUE(exchanges_[rank]->Post({Step(0), phase}, {empty, empty}).ok());
    }
  }
  const absl::Status end = slices_[1]->ReceiveWeights(Step(0), absl::MakeSpan(weights));
  EXPECT_EQ(end.code(), absl::StatusCode::kInternal) << end;
  EXPECT_TRUE(
      absl::StrContains(end.message(), "the dense weights of step 0 of rank 0 have 0 bytes, not "))
      << end;
}

INSTANTIATE_TEST_SUITE_P(Optimizers, DenseSlicesTest, testing::ValuesIn(kAllOptimizerKinds),
                         [](const auto& info) { return absl::StrCat("Case", info.index); });

}  // namespace
}  // namespace thermocline
