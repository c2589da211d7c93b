#include "common/job/job_data.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace thermocline {
namespace {

using google::protobuf::RepeatedPtrField;

// Criteo's columns.
constexpr uint32_t kDefaultIntegers = 13;
constexpr uint32_t kDefaultCategories = 26;
constexpr double kDefaultShare = 0.1;

// Sets `field` of `message` where the user left it out. For proto3 `optional` fields.
#define SET_DEFAULT(message, field, value)                        \
  do {                                                            \
    if (!(message)->has_##field()) (message)->set_##field(value); \
  } while (false)

bool IsCriteo(const Data& data) {
  return data.has_train() ? data.train().has_criteo_tsv() : data.format() == Data::CRITEO_TSV;
}

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

// ---- data

void ResolveFormat(Data::Files* files) {
  if (files->has_csv()) {
    SET_DEFAULT(files->mutable_csv(), separator, ",");
    SET_DEFAULT(files->mutable_csv(), quotes, true);
  } else if (files->has_criteo_tsv()) {
    SET_DEFAULT(files->mutable_criteo_tsv(), integers, kDefaultIntegers);
    SET_DEFAULT(files->mutable_criteo_tsv(), categories, kDefaultCategories);
  }
}

void ResolveLongForm(Data* data) {
  // What --data and --set of the short form's fields say.
  if (!data->path().empty()) {
    data->mutable_train()->clear_path();
    data->mutable_train()->add_path(data->path());
    data->clear_path();
  }
  if (!data->test_path().empty()) {
    data->mutable_test()->clear_path();
    data->mutable_test()->add_path(data->test_path());
    data->clear_test_path();
  }
  if (data->has_test_share()) {
    data->mutable_split()->set_last_share(data->test_share());
    data->clear_test_share();
  }
  ResolveFormat(data->mutable_train());
  if (data->has_test() && data->test().format_case() == Data::Files::FORMAT_NOT_SET) {
    Data::Files test = data->train();
    test.mutable_path()->Swap(data->mutable_test()->mutable_path());
    data->mutable_test()->Swap(&test);
  }
  if (data->has_test()) {
    ResolveFormat(data->mutable_test());
  } else {
    SET_DEFAULT(data->mutable_split(), last_share,
                !data->train().has_npy() && data->split().column().empty() ? kDefaultShare : 0);
  }
  if (data->train().has_criteo_tsv() && data->label().column().empty()) {
    data->mutable_label()->add_column("label");
  }
}

void ResolveShortForm(Data* data) {
  // The npy convention has its own files of held-out rows; a share of the others is held out on
  // request only.
  const bool has_test_rows = !data->test_path().empty() || data->format() == Data::DLRM_NPY;
  SET_DEFAULT(data, test_share, has_test_rows ? 0 : kDefaultShare);
}

// ---- features

// The features of one stanza: one for each of its columns.
std::vector<Feature> ExpandStanza(const Feature& stanza) {
  const std::vector<std::string> columns = ExpandColumns(stanza.column());
  if (columns.size() < 2) return {stanza};
  std::vector<Feature> features(columns.size(), stanza);
  for (size_t i = 0; i < columns.size(); ++i) {
    features[i].set_name(columns[i]);
    features[i].clear_column();
    features[i].add_column(columns[i]);
  }
  return features;
}

void ResolveCategorical(bool is_criteo, Feature* feature) {
  Feature::Categorical* categorical = feature->mutable_categorical();
  const bool is_sequence = feature->has_sequence();
  if (categorical->boundaries().empty() &&
      categorical->id() == Feature::Categorical::ID_UNSPECIFIED) {
    categorical->set_id(is_criteo ? Feature::Categorical::HEX : Feature::Categorical::STRING);
  }
  if (categorical->missing() == Feature::Categorical::MISSING_UNSPECIFIED) {
    categorical->set_missing(is_sequence ? Feature::Categorical::NO_KEY
                                         : Feature::Categorical::OWN_KEY);
  }
  SET_DEFAULT(categorical, separator, is_criteo ? "," : is_sequence ? "|" : "");
  if (is_sequence && feature->sequence().keep() == Feature::Sequence::KEEP_UNSPECIFIED) {
    feature->mutable_sequence()->set_keep(Feature::Sequence::LAST);
  }
}

// `*unnamed`: how many features of the short form have taken their column by their place.
void ResolveFeature(const Data& data, uint32_t* unnamed, Feature* feature) {
  if (feature->name().empty() && feature->column_size() == 1) feature->set_name(feature->column(0));
  const bool is_text = !IsNpy(data);
  if (is_text && feature->column().empty() && !feature->has_cross()) {
    const bool by_place = !data.has_train() && !IsNumeric(*feature);
    feature->add_column(by_place ? absl::StrCat("C", ++*unnamed) : feature->name());
  }
  if (IsNumeric(*feature)) return;
  if (feature->table().empty()) feature->set_table(feature->name());
  if (feature->pooling() == POOLING_UNSPECIFIED) feature->set_pooling(SUM);
  SET_DEFAULT(feature, columns, 1);
  if (is_text && !feature->has_cross()) ResolveCategorical(IsCriteo(data), feature);
}

void AddCriteoIntegers(uint32_t count, Job* job) {
  for (uint32_t i = 1; i <= std::min(count, kMaxColumns); ++i) {
    Feature* feature = job->add_feature();
    feature->set_name(absl::StrCat("I", i));
    feature->add_column(feature->name());
    feature->mutable_numeric()->set_missing(0);
    feature->mutable_numeric()->add_transform()->mutable_log1p();
  }
}

void AddCategories(uint32_t count, Job* job) {
  for (uint32_t i = 1; i <= std::min(count, kMaxColumns); ++i) {
    job->add_feature()->set_name(absl::StrCat("C", i));
  }
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

void ResolveData(Job* job) {
  Data* const data = job->mutable_data();
  SET_DEFAULT(data, read_ahead_batches, 4);
  const bool is_short = !data->has_train();
  const bool is_criteo = IsCriteo(*data);
  is_short ? ResolveShortForm(data) : ResolveLongForm(data);

  RepeatedPtrField<Feature> stanzas;
  stanzas.Swap(job->mutable_feature());
  for (const Feature& stanza : stanzas) {
    for (Feature& feature : ExpandStanza(stanza)) *job->add_feature() = std::move(feature);
  }
  // The columns that the data have and no stanza tells of.
  const bool is_all = job->feature_size() == 0;
  if (is_all && (is_short || is_criteo || IsNpy(*data))) {
    const bool is_counted = is_criteo && !is_short;
    if (!is_counted) SET_DEFAULT(data, num_categorical, kDefaultCategories);
    AddCategories(is_counted ? data->train().criteo_tsv().categories() : data->num_categorical(),
                  job);
  }
  uint32_t unnamed = 0;
  for (Feature& feature : *job->mutable_feature()) ResolveFeature(*data, &unnamed, &feature);
  uint32_t numeric = static_cast<uint32_t>(NumericFeatures(*job).size());
  if (is_short || IsNpy(*data)) {
    SET_DEFAULT(data, num_dense, numeric > 0 ? numeric : kDefaultIntegers);
    if (is_criteo && numeric == 0) AddCriteoIntegers(data->num_dense(), job);
  } else {
    if (is_all && is_criteo) AddCriteoIntegers(data->train().criteo_tsv().integers(), job);
    data->set_num_dense(static_cast<uint32_t>(NumericFeatures(*job).size()));
  }
  uint32_t columns = 0;
  for (const Feature* feature : EmbeddedFeatures(*job)) columns += feature->columns();
  if (is_short || IsNpy(*data)) {
    SET_DEFAULT(data, num_categorical, columns);
  } else {
    data->set_num_categorical(columns);
  }
}

#undef SET_DEFAULT

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

std::vector<int> FeatureStanzas(const Job& written) {
  std::vector<int> stanzas;
  for (int i = 0; i < written.feature_size(); ++i) {
    const size_t columns = ExpandColumns(written.feature(i).column()).size();
    stanzas.insert(stanzas.end(), std::max<size_t>(columns, 1), i);
  }
  return stanzas;
}

}  // namespace thermocline
