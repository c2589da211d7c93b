// Updates and copies of rows on the device have the bits of the CPU's.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "common/math/table_spec.h"
#include "common/math/testing/random_optimizers.h"
#include "kernels/cuda/testing/test_device.h"

namespace thermocline {
namespace {

class RowsTest : public KernelsTest {
 protected:
  std::vector<int32_t> DistinctRows(int32_t num_rows, int32_t count) {
    std::vector<int32_t> rows(num_rows);
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), rng_);
    rows.resize(count);
    return rows;
  }
  // The state holds what only sums of squares can be.
  std::vector<float> Positive(int64_t n) {
    std::vector<float> v = RandomFloats(&rng_, n);
    for (float& x : v) x = std::abs(x);
    return v;
  }

  struct Table {
    RowScalars scalars;
    int32_t dim, num_rows, row_floats;
    int64_t ld, gradient_ld;
    std::vector<int32_t> targets;
    std::vector<float> rows, gradients;
  };
  Table RandomTable(OptimizerKind kind, int32_t dim, int32_t num_rows, int32_t num_targets) {
    Table t;
    TableLayout layout;
    layout.dim = dim;
    DrawRowOptimizers([&](int n) { return static_cast<int>(rng_() % n); }, &layout);
    layout.optimizer.kind = kind;
    t.scalars =
        ScalarsForStep(layout.row_optimizer(), 0.1f, Step(static_cast<int64_t>(rng_() % 9)));
    t.dim = dim;
    t.num_rows = num_rows;
    t.row_floats = layout.row_floats();
    t.ld = t.row_floats + static_cast<int64_t>(rng_() % 4);
    t.gradient_ld = dim + static_cast<int64_t>(rng_() % 4);
    // A tenth of the targets lies beyond the rows.
    t.targets = DistinctRows(num_rows + num_rows / 10 + 1, num_targets);
    t.rows = Positive(num_rows * t.ld);
    t.gradients = RandomFloats(&rng_, num_targets * t.gradient_ld);
    return t;
  }

  void TestSparseUpdate(const std::vector<Table>& tables, const std::string& what) {
    ExpectSameBits(what, [&](Device* device, Uploads* uploads) {
      std::vector<RowUpdateGroup> groups;
      std::vector<float*> slabs;
      for (const Table& t : tables) {
        const auto n = static_cast<int32_t>(t.targets.size());
        slabs.push_back(uploads->Put(t.rows));
        AppendUpdates(t.scalars, FloatMatrix(uploads->Put(t.gradients), n, t.dim, t.gradient_ld),
                      uploads->PutSpan(t.targets),
                      FloatMatrix(slabs.back(), t.num_rows, t.row_floats, t.ld), &groups);
      }
      device->SparseUpdate(groups);
      std::vector<float> all;
      for (size_t i = 0; i < tables.size(); ++i) {
        const auto rows = uploads->Get(slabs[i], tables[i].rows.size());
        all.insert(all.end(), rows.begin(), rows.end());
      }
      return all;
    });
  }
};

TEST_F(RowsTest, SparseUpdate) {
  for (OptimizerKind kind : kRowOptimizerKinds) {
    for (int32_t dim : {1, 8, 16, 17, 64, 128}) {
      const std::string what =
          std::string(OptimizerKindName(kind)) + ", dim " + std::to_string(dim);
      for (int32_t targets : {0, 1, 15, 200}) {
        TestSparseUpdate({RandomTable(kind, dim, 300, targets)}, what);
      }
    }
  }
}

TEST_F(RowsTest, SparseUpdateOfManyTables) {
  std::vector<Table> tables;
  for (int i = 0; i < 70; ++i) {
    const int32_t dims[] = {4, 16, 33};
    tables.push_back(RandomTable(kRowOptimizerKinds[i % std::size(kRowOptimizerKinds)], dims[i % 3],
                                 40, static_cast<int32_t>(rng_() % 41)));
  }
  TestSparseUpdate(tables, "70 tables");
}

TEST_F(RowsTest, DenseUpdate) {
  for (OptimizerKind kind : kAllOptimizerKinds) {
    for (int64_t blocks : {0, 1, 37, 300}) {
      OptimizerConfig config = DrawOptimizer([&](int n) { return static_cast<int>(rng_() % n); });
      config.kind = kind;
      // Some gradients are longer, and some are not.
      if (blocks > 1 && rng_() % 4 > 0) config.clip_global_norm = blocks == 37 ? 5.0f : 1e6f;
      const int64_t floats = blocks * kDenseBlockFloats;
      const int64_t state_floats = blocks * StateFloats(config, kDenseBlockFloats);
      const std::vector<float> gradients = RandomFloats(&rng_, floats);
      const std::vector<float> weights = RandomFloats(&rng_, floats);
      const std::vector<float> state = Positive(state_floats);
      ExpectSameBits(std::string(OptimizerKindName(kind)), [&](Device* device, Uploads* uploads) {
        float* const w = uploads->Put(weights);
        float* const s = uploads->Put(state);
        device->DenseUpdate(config, ScalarsForStep(config, 0.1f, Step(3)),
                            uploads->PutSpan(gradients), {w, floats}, {s, state_floats});
        std::vector<float> all = uploads->Get(w, floats);
        const std::vector<float> new_state = uploads->Get(s, state_floats);
        all.insert(all.end(), new_state.begin(), new_state.end());
        return all;
      });
    }
  }
}

TEST_F(RowsTest, GatherAndScatter) {
  for (int32_t cols : {1, 8, 17, 32, 128}) {
    for (int64_t pad : {0, 4, 1}) {
      for (int32_t n : {0, 1, 200}) {
        const int64_t ld = cols + 8 + pad, packed_ld = cols + pad;
        const std::vector<int32_t> rows = DistinctRows(300, n);
        const std::vector<float> scattered = RandomFloats(&rng_, 300 * ld);
        const std::vector<float> packed = RandomFloats(&rng_, n * packed_ld);
        for (bool gather : {true, false}) {
          ExpectSameBits("copies", [&](Device* device, Uploads* uploads) {
            // Twice: a call takes several tables.
            std::vector<RowCopy> copies;
            for (int i = 0; i < 2; ++i) {
              copies.push_back({FloatMatrix(uploads->Put(scattered), 300, cols + 4, ld),
                                uploads->PutSpan(rows),
                                FloatMatrix(uploads->Put(packed), n, cols, packed_ld)});
            }
            if (gather) {
              device->GatherRows(copies);
            } else {
              device->ScatterRows(copies);
            }
            std::vector<float> all;
            for (const RowCopy& copy : copies) {
              for (const auto& part : {uploads->Get(copy.scattered.floats(), scattered.size()),
                                       uploads->Get(copy.packed.floats(), packed.size())}) {
                all.insert(all.end(), part.begin(), part.end());
              }
            }
            return all;
          });
        }
      }
    }
  }
}

TEST_F(RowsTest, FindNonFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (int64_t n : {0, 1, 255, 300000}) {
    for (int bad = 0; bad < 3; ++bad) {
      std::vector<float> values = RandomFloats(&rng_, n, 1e38f);
      int64_t expected = n;
      for (int i = 0; i < bad && n > 0; ++i) {
        const auto at = static_cast<int64_t>(rng_() % n);
        values[at] = rng_() % 2 == 0 ? kNan : -kInfinity;
        expected = std::min(expected, at);
      }
      for (Device* device : {cpu_.get(), device_.get()}) {
        Uploads uploads(device);
        int64_t* const index = uploads.Put(std::vector<int64_t>{-7});
        device->FindNonFinite(uploads.PutSpan(values), {index, 1});
        EXPECT_EQ(uploads.Get(index, 1)[0], expected);
        EXPECT_TRUE(device->Synchronize().ok());
      }
    }
  }
}

}  // namespace
}  // namespace thermocline
