#include "common/job/job_data.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace thermocline {
namespace {

using google::protobuf::RepeatedPtrField;

// "C12" as "C" and 12.
bool SplitNumber(absl::string_view name, absl::string_view* prefix, uint32_t* number) {
  size_t digits = name.size();
  while (digits > 0 && absl::ascii_isdigit(name[digits - 1])) --digits;
  *prefix = name.substr(0, digits);
  return absl::SimpleAtoi(name.substr(digits), number);
}

// The names of a range, or {} where `text` is none.
std::vector<std::string> ExpandRange(absl::string_view text) {
  const size_t dots = text.find("..");
  if (dots == text.npos) return {};
  absl::string_view prefix, prefix_of_last;
  uint32_t first = 0, last = 0;
  if (!SplitNumber(text.substr(0, dots), &prefix, &first)) return {};
  if (!SplitNumber(text.substr(dots + 2), &prefix_of_last, &last)) return {};
  if (prefix != prefix_of_last || first > last || last - first >= kMaxColumns) return {};
  std::vector<std::string> names;
  for (uint32_t i = first; i <= last; ++i) names.push_back(absl::StrCat(prefix, i));
  return names;
}

}  // namespace

std::vector<std::string> ExpandColumns(const RepeatedPtrField<std::string>& columns) {
  std::vector<std::string> names;
  for (const std::string& column : columns) {
    std::vector<std::string> range = ExpandRange(column);
    if (range.empty()) range.push_back(column);
    names.insert(names.end(), range.begin(), range.end());
  }
  return names;
}

Data DescribeData(const Data& resolved) {
  if (resolved.has_train()) return resolved;
  Data data = resolved;
  Data::Files* const train = data.mutable_train();
  train->add_path(resolved.path());
  if (resolved.format() == Data::DLRM_NPY) {
    train->mutable_npy();
  } else {
    train->mutable_criteo_tsv()->set_integers(resolved.num_dense());
    train->mutable_criteo_tsv()->set_categories(resolved.num_categorical());
    data.mutable_label()->add_column("label");
  }
  if (!resolved.test_path().empty()) {
    *data.mutable_test() = *train;
    data.mutable_test()->set_path(0, resolved.test_path());
  } else {
    data.mutable_split()->set_last_share(resolved.test_share());
  }
  data.clear_format();
  data.clear_path();
  data.clear_test_path();
  data.clear_test_share();
  return data;
}

std::vector<std::string> LabelColumns(const Job& job) {
  const auto& columns = job.data().label().column();
  if (!columns.empty()) return {columns.begin(), columns.end()};
  return {"label"};
}

std::vector<std::string> LearnedLabels(const Job& resolved) {
  const std::string first = LabelColumns(resolved)[0];
  std::vector<std::string> labels;
  for (const Task& task : resolved.task()) {
    labels.push_back(task.label().empty() ? first : task.label());
  }
  if (labels.empty()) labels.push_back(first);
  return labels;
}

size_t NumbersOfLabels(const Job& resolved) {
  const Data data = DescribeData(resolved.data());
  const bool has_weights = !data.weight().empty() || data.label().may_be_missing();
  return LearnedLabels(resolved).size() * (has_weights ? 2 : 1);
}

std::vector<std::string> NpyParts(const Job& resolved) {
  std::vector<std::string> parts = {"labels"}, lists;
  if (resolved.data().num_dense() > 0) parts.push_back("dense");
  bool has_columns = false;
  for (const Feature& feature : resolved.feature()) {
    has_columns |= !feature.has_sequence();
    if (!feature.has_sequence()) continue;
    lists.push_back(feature.name() + "_values");
    lists.push_back(feature.name() + "_offsets");
  }
  if (has_columns) parts.push_back("sparse");
  parts.insert(parts.end(), lists.begin(), lists.end());
  return parts;
}

size_t DecidingTask(const Job& resolved) {
  const std::vector<std::string> labels = LearnedLabels(resolved);
  const auto named = std::find(labels.begin(), labels.end(), resolved.evaluate().task());
  return named == labels.end() ? 0 : static_cast<size_t>(named - labels.begin());
}

std::vector<std::string> TextColumns(const Data::Files& files) {
  if (files.has_csv()) return ExpandColumns(files.csv().column());
  if (files.has_parquet()) return {};
  std::vector<std::string> columns = {"label"};
  for (uint32_t i = 1; i <= files.criteo_tsv().integers(); ++i) {
    columns.push_back(absl::StrCat("I", i));
  }
  for (uint32_t i = 1; i <= files.criteo_tsv().categories(); ++i) {
    columns.push_back(absl::StrCat("C", i));
  }
  return columns;
}

std::vector<const Feature*> EmbeddedFeatures(const Job& resolved) {
  std::vector<const Feature*> features;
  for (const Feature& feature : resolved.feature()) {
    if (!IsNumeric(feature)) features.push_back(&feature);
  }
  return features;
}

std::vector<const Feature*> NumericFeatures(const Job& resolved) {
  std::vector<const Feature*> features;
  for (const Feature& feature : resolved.feature()) {
    if (IsNumeric(feature)) features.push_back(&feature);
  }
  return features;
}

std::string DescribeChange(const DataFile& now, const DataFile& before) {
  if (!now.has_bytes() || !before.has_bytes()) return "";
  if (now.bytes() != before.bytes()) {
    return absl::StrCat("has ", now.bytes(), " bytes, and had ", before.bytes());
  }
  const bool has_other_begin = now.head_crc32c() != before.head_crc32c();
  const bool has_other_end = now.tail_crc32c() != before.tail_crc32c();
  if (!has_other_begin && !has_other_end) return "";
  return absl::StrCat("has ", now.bytes(), " bytes as before, but others at its ",
                      !has_other_end    ? "beginning"
                      : has_other_begin ? "beginning and end"
                                        : "end");
}

std::vector<int> FeatureStanzas(const Job& written) {
  std::vector<int> stanzas;
  for (int i = 0; i < written.feature_size(); ++i) {
    const size_t columns = ExpandColumns(written.feature(i).column()).size();
    stanzas.insert(stanzas.end(), std::max<size_t>(columns, 1), i);
  }
  return stanzas;
}

}  // namespace thermocline
