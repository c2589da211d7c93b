// Reads how much each value of a list counts in its feature's pooled embedding
// (categorical.weights): a second column has as many numbers as the list has values.
// docs/formats.md has the arithmetic.
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
  // REQUIRES: `feature` has weights, and is of a resolved, valid job
  explicit ListWeights(const Feature& feature);

  // Adds the keys of `text` and their weights. Returns false if one of both texts is malformed, or
  // they have different numbers of values; some may have been added then.
  bool Read(const KeyReader& reader, absl::string_view text, absl::string_view weights,
            KeyBuffer* keys) const;

  // For columns that are lists already, value by value: adds the weight of a value, after its key
  // was added to `keys` (or after a value without a key, whose weight is dropped). Finish() comes
  // after the last value. Returns false if the number can't be a weight.
  bool Add(float weight, KeyBuffer* keys) const;
  // Removes those keys of a list that its sequence does not keep, and divides the weights if the
  // pooling is MEAN. The list's keys are those from `begin` on.
  void Finish(const KeyReader& reader, size_t begin, KeyBuffer* keys) const;
  // Reads a finite number.
  const NumberReader& number() const { return number_; }

  // These return what is wrong; "" if nothing is. Describe looks at both texts, DescribeWeight at
  // one weight, DescribeCounts at the numbers of values.
  //   column: the name of the list's column
  std::string Describe(const KeyReader& reader, absl::string_view column, absl::string_view text,
                       absl::string_view weights) const;
  std::string DescribeWeight(absl::string_view text) const;
  static std::string DescribeCounts(size_t weights, absl::string_view column, size_t values);

 private:
  const NumberReader number_;
  const bool is_mean_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_LIST_WEIGHTS_H_
