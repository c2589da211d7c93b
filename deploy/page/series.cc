#include "deploy/page/series.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// Beyond it a double has no exact whole numbers.
constexpr double kMaxWhole = 9e15;

}  // namespace

Json ShortNumber(std::optional<double> value) {
  if (!value.has_value() || !std::isfinite(*value)) return nullptr;
  double rounded = *value;
  if (rounded != 0 && rounded != std::round(rounded)) {
    const int magnitude = static_cast<int>(std::floor(std::log10(std::abs(rounded))));
    if (magnitude < -300) return 0;
    const double scale = std::pow(10.0, std::abs(5 - magnitude));
    rounded =
        magnitude <= 5 ? std::round(rounded * scale) / scale : std::round(rounded / scale) * scale;
  }
  if (rounded == std::round(rounded) && std::abs(rounded) < kMaxWhole) {
    return static_cast<int64_t>(rounded);
  }
  return rounded;
}

void Series::Begin(const Place& at) {
  if (points_.empty() || lines_of_last_ >= lines_per_point_) {
    if (points_.size() >= kMaxPoints) MergePairs();
    points_.emplace_back();
    lines_of_last_ = 0;
  }
  points_.back().at = at;
  ++lines_of_last_;
}

void Series::Put(absl::string_view name, std::optional<double> value, bool keeps_extremes) {
  if (!value.has_value() || !std::isfinite(*value)) return;
  std::optional<size_t> index = IndexOf(name);
  if (!index.has_value()) {
    if (figures_.size() >= kMaxFigures) return;
    index = figures_.size();
    figures_.push_back({std::string(name), keeps_extremes});
  }
  std::vector<Sums>& all = points_.back().figures;
  if (all.size() <= *index) all.resize(*index + 1);
  Sums& sums = all[*index];
  ++sums.count;
  sums.sum += *value;
  sums.min = std::min(sums.min, *value);
  sums.max = std::max(sums.max, *value);
}

// All points are whole here, and there is an even number of them.
void Series::MergePairs() {
  for (size_t i = 0; i + 1 < points_.size(); i += 2) {
    Point& first = points_[i];
    Point& second = points_[i + 1];
    if (second.figures.size() < first.figures.size()) second.figures.resize(first.figures.size());
    for (size_t f = 0; f < first.figures.size(); ++f) {
      Sums& sums = second.figures[f];
      sums.count += first.figures[f].count;
      sums.sum += first.figures[f].sum;
      sums.min = std::min(sums.min, first.figures[f].min);
      sums.max = std::max(sums.max, first.figures[f].max);
    }
    points_[i / 2] = std::move(second);
  }
  points_.resize(points_.size() / 2);
  lines_per_point_ *= 2;
}

std::optional<size_t> Series::IndexOf(absl::string_view name) const {
  for (size_t i = 0; i < figures_.size(); ++i) {
    if (figures_[i].name == name) return i;
  }
  return std::nullopt;
}

size_t Series::FirstBeyond(double step) const {
  size_t first = points_.size();
  while (first > 0 && points_[first - 1].at.step > step) --first;
  return first;
}

void Series::Truncate(size_t size) {
  if (size >= points_.size()) return;
  points_.resize(size);
  lines_of_last_ = lines_per_point_;
}

std::optional<double> Series::Mean(size_t point, absl::string_view name) const {
  const std::optional<size_t> index = IndexOf(name);
  const std::vector<Sums>& all = points_[point].figures;
  if (!index.has_value() || *index >= all.size() || all[*index].count == 0) return std::nullopt;
  return all[*index].sum / static_cast<double>(all[*index].count);
}

Json Series::ToJson() const {
  Json out = {{"lines_per_point", lines_per_point_}, {"step", Json::array()}, {"t", Json::array()}};
  const bool has_samples = std::any_of(points_.begin(), points_.end(), [](const Point& point) {
    return point.at.samples.has_value();
  });
  if (has_samples) out["samples"] = Json::array();
  for (const Point& point : points_) {
    out["step"].push_back(ShortNumber(point.at.step));
    out["t"].push_back(ShortNumber(point.at.t));
    if (has_samples) out["samples"].push_back(ShortNumber(point.at.samples));
  }
  out["mean"] = Json::object();
  for (size_t f = 0; f < figures_.size(); ++f) {
    const auto column = [&](auto value_of) {
      Json values = Json::array();
      for (const Point& point : points_) {
        const bool has = f < point.figures.size() && point.figures[f].count > 0;
        values.push_back(has ? ShortNumber(value_of(point.figures[f])) : Json());
      }
      return values;
    };
    const Figure& figure = figures_[f];
    out["mean"][figure.name] =
        column([](const Sums& sums) { return sums.sum / static_cast<double>(sums.count); });
    if (lines_per_point_ == 1 || !figure.keeps_extremes) continue;
    out["min"][figure.name] = column([](const Sums& sums) { return sums.min; });
    out["max"][figure.name] = column([](const Sums& sums) { return sums.max; });
  }
  return out;
}

}  // namespace thermocline
