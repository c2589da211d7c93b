#include "deploy/plan/feature_estimates.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"

namespace thermocline {

using Json = nlohmann::ordered_json;

// What the figures say of the column of a feature; null: nothing.
const Json* ColumnOf(const Feature& feature, const Json* figures) {
  if (figures == nullptr) return nullptr;
  const std::string& name = feature.column_size() > 0 ? feature.column(0) : feature.name();
  for (const Json& column : figures->at("columns")) {
    if (column.at("name") == name) return &column;
  }
  return nullptr;
}

double LookupsOf(const Feature& feature, const Json* figures) {
  const Json* column = ColumnOf(feature, figures);
  const double most = feature.has_sequence() ? feature.sequence().max_length() : 1e9;
  if (column == nullptr && feature.has_sequence()) return most;
  if (column == nullptr || feature.columns() > 1) return feature.columns();
  const double rows = std::max(1.0, column->at("rows").get<double>());
  // A missing value is a lookup, too, unless it is no key.
  const double missing = feature.categorical().missing() == Feature::Categorical::NO_KEY
                             ? 0
                             : column->at("missing").get<double>();
  return std::min(most, (column->at("values").get<double>() + missing) / rows);
}

double LookupsOf(const FeatureSpec& spec, const std::vector<const Feature*>& features,
                 const Json* figures) {
  return LookupsOf(*features[spec.source], figures) + (spec.then >= 0 ? 1 : 0);
}

std::vector<double> StepsOfSample(const JobTables& tables, size_t sequences,
                                  const std::vector<const Feature*>& features,
                                  const Json* figures) {
  std::vector<double> steps(sequences);
  for (const FeatureSpec& spec : tables.features) {
    if (spec.sequence >= 0) steps[spec.sequence] = LookupsOf(spec, features, figures);
  }
  return steps;
}

std::vector<LookedUp> LookedUpOf(const JobTables& tables,
                                 const std::vector<const Feature*>& features) {
  std::vector<LookedUp> looked_up;
  std::vector<bool> is_there(features.size());
  for (const FeatureSpec& spec : tables.features) {
    for (const int source : {spec.source, spec.then}) {
      if (source < 0 || is_there[source]) continue;
      is_there[source] = true;
      looked_up.push_back({features[source], spec.table_index});
    }
  }
  return looked_up;
}

KnownRows RowsOf(const Feature& feature, const Json* figures, double training_share) {
  const Feature::Categorical& categorical = feature.categorical();
  if (categorical.boundaries_size() > 0) {
    return {categorical.boundaries_size() + 2, "boundaries"};
  }
  const uint64_t buckets = feature.has_cross() ? feature.cross().buckets() : categorical.buckets();
  const double most = buckets > 0 ? static_cast<double>(buckets) : INFINITY;
  const Json* column = feature.has_cross() ? nullptr : ColumnOf(feature, figures);
  if (column != nullptr && column->contains("distinct")) {
    // A value that occurs once is held out as often as a row is; others seldom.
    const double once = column->contains("once_share") ? column->at("once_share").get<double>() : 0;
    double rows = column->at("distinct").get<double>() * (1 - once * (1 - training_share));
    rows += column->at("missing").get<double>() > 0 ? 1 : 0;
    const bool is_part = !figures->at("complete").get<bool>();
    // Parts of texts have fewer distinct values than whole texts; an hour is a part with two
    // digits.
    if (categorical.has_substring()) {
      const double digits = categorical.substring().length();
      const bool is_short = column->at("type") == "time" && digits > 0;
      rows = std::min({rows, most, is_short ? std::pow(10, digits) : rows});
      return {rows, "inspected: at most"};
    }
    if (rows >= most) return {most, "buckets"};
    return {rows, is_part ? "inspected in part: at least" : "inspected"};
  }
  if (feature.has_cross() && figures != nullptr) {
    // No more combinations than rows of the log.
    const double rows = figures->at("rows").get<double>() * training_share;
    return {std::min(rows, most), rows < most ? "at most the log's rows" : "at most its buckets"};
  }
  if (buckets > 0) return {most, "at most its buckets"};
  return {std::nullopt, "not known"};
}

double DistinctIn(const Feature& feature, const Json* figures, double batch) {
  const double lookups = batch * LookupsOf(feature, figures);
  double most = lookups;
  if (const auto known = RowsOf(feature, figures, 1).rows) most = std::min(most, *known);
  const Json* column = ColumnOf(feature, figures);
  if (column == nullptr || feature.has_cross() || !column->contains("distinct_in_batch")) {
    return most;
  }
  // Between two inspected sizes, a straight line on logarithmic axes.
  double low = 1, at_low = 1;
  for (const auto& [text, distinct] : column->at("distinct_in_batch").items()) {
    double size = 0;
    if (!absl::SimpleAtod(text, &size)) continue;
    const double at_size = std::max(1.0, distinct.get<double>());
    if (batch <= size) {
      const double share = std::log(batch / low) / std::log(size / low);
      return std::min(most, at_low * std::pow(at_size / at_low, share));
    }
    low = size;
    at_low = at_size;
  }
  return std::min(most, at_low * batch / low);
}

}  // namespace thermocline
