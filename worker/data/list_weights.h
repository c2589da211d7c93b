// How much each value of a list counts in its feature's pooled embedding (categorical.weights):
// numbers of a second column, as many as the list has values. docs/formats.md has the arithmetic.
#ifndef THERMOCLINE_WORKER_DATA_LIST_WEIGHTS_H_
#define THERMOCLINE_WORKER_DATA_LIST_WEIGHTS_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/job.pb.h"
#include "worker/data/batch.h"
#include "worker/data/column_values.h"

namespace thermocline {

// Immutable.
class ListWeights {
 public:
  // REQUIRES: `feature` has weights, of a resolved, valid job
  explicit ListWeights(const Feature& feature);

  // Adds the keys of `text` and the weight of each. False: one of both is malformed, or they are
  // not as many; some may have been added.
  bool Read(const KeyReader& reader, absl::string_view text, absl::string_view weights,
            KeyBuffer* keys) const;

  // The same of columns that are lists already, value by value: after each of them that was added
  // to `keys`, or has no key, its weight; then Finish(). False: it can't be a weight.
  bool Add(float weight, KeyBuffer* keys) const;
  // Leaves what a sequence keeps of the keys from `begin` on, those of one list, and divides their
  // weights where the pooling is MEAN.
  void Finish(const KeyReader& reader, size_t begin, KeyBuffer* keys) const;
  // Reads a finite number.
  const NumberReader& number() const { return number_; }

  // What is wrong with the texts; "" where nothing is. `column`: that of the list.
  std::string Describe(const KeyReader& reader, absl::string_view column, absl::string_view text,
                       absl::string_view weights) const;
  // With one weight.
  std::string DescribeWeight(absl::string_view text) const;
  // With how many there are.
  static std::string DescribeCounts(size_t weights, absl::string_view column, size_t values);

 private:
  const NumberReader number_;
  const bool is_mean_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_LIST_WEIGHTS_H_
