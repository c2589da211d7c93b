// Draws optimizers for the tests of all that updates rows.
#ifndef THERMOCLINE_COMMON_MATH_TESTING_RANDOM_OPTIMIZERS_H_
#define THERMOCLINE_COMMON_MATH_TESTING_RANDOM_OPTIMIZERS_H_

#include <iterator>

#include "common/math/table_spec.h"
#include "proto/job.pb.h"

namespace thermocline {

// An optimizer that the rows of a sparse table may have. draw(n) gives a number in [0, n).
template <typename Draw>
OptimizerConfig DrawOptimizer(Draw draw) {
  OptimizerConfig optimizer;
  optimizer.kind = kRowOptimizerKinds[draw(static_cast<int>(std::size(kRowOptimizerKinds)))];
  optimizer.nesterov = draw(2) == 1;
  optimizer.initial_accumulator = 0.5f;
  if (draw(2) == 0) optimizer.l1 = 0.01f;
  if (draw(2) == 0) optimizer.l2 = 0.1f;
  if (draw(3) == 0) optimizer.weight_decay = 0.05f;
  if (draw(3) == 0) optimizer.clip_value = 0.75f;
  if (draw(3) == 0) optimizer.clip_norm = 0.5f;
  // What the kind doesn't have keeps its default.
  return *OptimizerFromProto(OptimizerToProto(optimizer));
}

// The optimizers of a table that is drawn; half of them have first-order weights. Devices know no
// cow_clip, so it is not drawn.
template <typename Draw>
void DrawRowOptimizers(Draw draw, TableLayout* layout) {
  layout->optimizer = DrawOptimizer(draw);
  layout->first_order.reset();
  if (draw(2) == 0) return;
  FirstOrderWeight& weight = layout->first_order.emplace();
  weight.optimizer = DrawOptimizer(draw);
  if (draw(2) == 0) weight.distribution = InitialDistribution::kUniform;
  weight.init_scale = 0.25f;
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_TESTING_RANDOM_OPTIMIZERS_H_
