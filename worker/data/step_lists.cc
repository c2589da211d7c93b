#include "worker/data/step_lists.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job/job_data.h"

namespace thermocline {
namespace {

// The keys of each sample, and behind them the one key of `then`.
void AppendThen(const FeatureLookups& list, const FeatureLookups& then, int samples,
                FeatureLookups* steps) {
  steps->weights.clear();
  steps->keys.resize(list.keys.size() + samples);
  steps->offsets.resize(samples + 1);
  steps->offsets[0] = 0;
  Key* key = steps->keys.data();
  for (int b = 0; b < samples; ++b) {
    key = std::copy(list.keys.begin() + list.offsets[b], list.keys.begin() + list.offsets[b + 1],
                    key);
    *key++ = then.keys[then.offsets[b]];
    steps->offsets[b + 1] = list.offsets[b + 1] + b + 1;
  }
}

}  // namespace

StepLists::StepLists(const Job& job) {
  std::map<std::string, int> numbers;
  for (const Feature* feature : EmbeddedFeatures(job)) {
    numbers.emplace(feature->name(), static_cast<int>(numbers.size()));
  }
  for (const Sequence& sequence : job.sequence()) {
    Lists& lists = sequences_.emplace_back();
    lists.sequence = sequence.name();
    is_list_.resize(numbers.size());
    for (const std::string& name : sequence.of()) {
      lists.features.push_back(numbers.at(name));
      is_list_[lists.features.back()] = true;
    }
  }
}

std::string StepLists::Describe(const Mismatch& mismatch, absl::string_view first,
                                size_t first_length, absl::string_view second,
                                size_t second_length) {
  return absl::StrCat(first, " has ", first_length, first_length == 1 ? " value" : " values",
                      ", but ", second, " has ", second_length, "; the sequence '",
                      *mismatch.sequence, "' reads them together");
}

LookupMaker::LookupMaker(std::vector<FeatureSpec> features)
    : features_(std::move(features)), is_last_use_(features_.size()) {
  std::vector<bool> is_read;
  for (size_t f = features_.size(); f-- > 0;) {
    for (const int source : {features_[f].source, features_[f].then}) {
      if (source < 0) continue;
      if (static_cast<size_t>(source) >= is_read.size()) is_read.resize(source + 1);
      if (source == features_[f].source) is_last_use_[f] = !is_read[source];
      is_read[source] = true;
    }
  }
}

void LookupMaker::MakeLookups(Batch* batch, std::vector<FeatureLookups>* columns) const {
  columns->swap(batch->features);
  batch->features.resize(features_.size());
  for (size_t f = 0; f < features_.size(); ++f) {
    const FeatureSpec& feature = features_[f];
    FeatureLookups& column = (*columns)[feature.source];
    if (feature.then >= 0) {
      AppendThen(column, (*columns)[feature.then], batch->size, &batch->features[f]);
    } else if (is_last_use_[f]) {
      std::swap(column, batch->features[f]);
    } else {
      batch->features[f] = column;
    }
  }
}

}  // namespace thermocline
