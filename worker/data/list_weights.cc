#include "worker/data/list_weights.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace thermocline {
namespace {

// Takes the values of a text one by one.
class Pieces {
 public:
  // separator: 0 where the text is one value
  Pieces(absl::string_view text, char separator) : rest_(text), separator_(separator) {}

  bool Next(absl::string_view* piece) {
    if (is_done_) return false;
    const size_t end = separator_ == 0 ? rest_.npos : rest_.find(separator_);
    *piece = rest_.substr(0, end);
    is_done_ = end == rest_.npos;
    if (!is_done_) rest_.remove_prefix(end + 1);
    return true;
  }
  size_t Count() const {
    return separator_ == 0 ? 1 : 1 + std::count(rest_.begin(), rest_.end(), separator_);
  }

 private:
  absl::string_view rest_;
  const char separator_;
  bool is_done_ = false;
};

}  // namespace

ListWeights::ListWeights(const Feature& feature)
    : number_(Feature::Numeric()), is_mean_(feature.pooling() == MEAN) {}

bool ListWeights::Add(float weight, KeyBuffer* keys) const {
  if (is_mean_ && weight < 0) return false;
  if (keys->weights->size() < keys->size) keys->weights->push_back(weight);
  return true;
}

bool ListWeights::Read(const KeyReader& reader, absl::string_view text, absl::string_view weights,
                       KeyBuffer* keys) const {
  const size_t begin = keys->size;
  if (text.empty() && weights.empty()) {
    if (!reader.ReadValue(text, keys) || !Add(1, keys)) return false;
    Finish(reader, begin, keys);
    return true;
  }
  Pieces values(text, reader.separator()), numbers(weights, reader.separator());
  absl::string_view value, number;
  float weight;
  while (values.Next(&value)) {
    if (value.empty() && !text.empty()) return false;
    if (!numbers.Next(&number) || !number_.Read(number, &weight)) return false;
    if (!reader.ReadValue(value, keys) || !Add(weight, keys)) return false;
  }
  Finish(reader, begin, keys);
  return !numbers.Next(&number);
}

void ListWeights::Finish(const KeyReader& reader, size_t begin, KeyBuffer* keys) const {
  UninitializedVector<float>& weights = *keys->weights;
  CHECK_EQ(weights.size(), keys->size);
  reader.Shorten(begin, keys);
  const size_t left_out = weights.size() - keys->size;
  const auto first = weights.begin() + static_cast<std::ptrdiff_t>(begin);
  if (left_out > 0 && !reader.keeps_first()) std::copy(first + left_out, weights.end(), first);
  weights.resize(keys->size);
  if (!is_mean_) return;
  double sum = 0;
  for (size_t i = begin; i < weights.size(); ++i) sum += weights[i];
  if (sum == 0) return;
  for (size_t i = begin; i < weights.size(); ++i) weights[i] = static_cast<float>(weights[i] / sum);
}

std::string ListWeights::DescribeWeight(absl::string_view text) const {
  float weight;
  if (!number_.Read(text, &weight)) {
    return absl::StrCat(QuoteText(text), " is not a weight: a finite number");
  }
  if (!is_mean_ || weight >= 0) return "";
  return absl::StrCat(QuoteText(text), " is below 0, and the feature's pooling is MEAN");
}

std::string ListWeights::DescribeCounts(size_t weights, absl::string_view column, size_t values) {
  return absl::StrCat(weights, weights == 1 ? " weight" : " weights", ", but '", column, "' has ",
                      values, values == 1 ? " value" : " values");
}

std::string ListWeights::Describe(const KeyReader& reader, absl::string_view column,
                                  absl::string_view text, absl::string_view weights) const {
  if (text.empty() && weights.empty()) return "";
  const Pieces values(text, reader.separator());
  Pieces numbers(weights, reader.separator());
  const size_t num_values = text.empty() && numbers.Count() != 1 ? 0 : values.Count();
  const size_t num_weights = weights.empty() ? 0 : numbers.Count();
  if (num_values != num_weights) return DescribeCounts(num_weights, column, num_values);
  std::string wrong;
  for (absl::string_view number; wrong.empty() && numbers.Next(&number);) {
    wrong = DescribeWeight(number);
  }
  return wrong;
}

}  // namespace thermocline
