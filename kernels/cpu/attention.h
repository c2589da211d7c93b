// Attention among the steps of one sample by one head (step_operations.h).
#ifndef THERMOCLINE_KERNELS_CPU_ATTENTION_H_
#define THERMOCLINE_KERNELS_CPU_ATTENTION_H_

#include <cstdint>
#include <vector>

namespace thermocline {

// A head's columns in the rows of one sample's steps, the first of them at `first`.
struct RowsOfHead {
  float* first = nullptr;
  int64_t ld = 0;

  float* row(int64_t r) const { return first + r * ld; }
};

// A head at work, with its scratch, which grows to the longest sample seen. Not thread-safe.
class AttentionHead {
 public:
  // statistics: row(t)[0] is `most`, row(t)[statistics_stride] is 1 / the sum of e.
  void Forward(int64_t steps, int32_t width, RowsOfHead q, RowsOfHead k, RowsOfHead v, RowsOfHead y,
               RowsOfHead statistics, int64_t statistics_stride);
  void Backward(int64_t steps, int32_t width, RowsOfHead q, RowsOfHead k, RowsOfHead v,
                RowsOfHead y, RowsOfHead statistics, int64_t statistics_stride,
                RowsOfHead y_gradient, RowsOfHead q_gradient, RowsOfHead k_gradient,
                RowsOfHead v_gradient);

 private:
  // Packed matrices have `padded_steps` rows of `padded_width` columns, zeros in what was added; so
  // all loops run over whole vectors.
  void Begin(int64_t steps, int32_t width);
  void Pack(RowsOfHead from, std::vector<float>* rows) const;
  void Unpack(const std::vector<float>& rows, RowsOfHead to) const;
  void Transpose(RowsOfHead from, std::vector<float>* columns) const;
  // scores[i][s] = dot(rows[first + i], the row s of what is transposed), for so many queries.
  void Dots(const std::vector<float>& rows, int64_t first, int64_t queries,
            const std::vector<float>& transposed, std::vector<float>* scores) const;

  int64_t steps_ = 0, padded_steps_ = 0;
  int32_t width_ = 0, padded_width_ = 0;
  std::vector<float> q_, k_, v_, y_, y_gradient_;  // [padded steps, padded width]
  std::vector<float> q_gradient_, k_gradient_, v_gradient_;
  std::vector<float> k_transposed_, v_transposed_;  // [width, padded steps]
  std::vector<float> shares_, score_gradients_;     // [kQueries, padded steps]
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_ATTENTION_H_
