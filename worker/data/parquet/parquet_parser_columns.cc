// Chooses and checks the columns of files that a parser reads.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/job/job_data.h"
#include "worker/data/parquet/parquet_parser.h"

namespace thermocline {
namespace {

using Kind = ParquetColumn::Kind;

bool IsTime(Kind kind) { return kind == Kind::kDate || kind == Kind::kTimestamp; }

// "2026-11-20", maybe with a time of the day, in UTC, as whole units since 1970: the first that is
// not before it.
absl::StatusOr<int64_t> ParseTime(const std::string& text, int64_t nanos_per_unit) {
  for (const char* format : {"%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%E*S", "%Y-%m-%dT%H:%M",
                             "%Y-%m-%dT%H:%M:%E*S", "%Y-%m-%dT%H:%M:%E*S%Ez"}) {
    absl::Time time;
    std::string ignored;
    if (!absl::ParseTime(format, text, absl::UTCTimeZone(), &time, &ignored)) continue;
    const int64_t nanos = absl::ToUnixNanos(time);
    return nanos / nanos_per_unit + (nanos % nanos_per_unit > 0 ? 1 : 0);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("data.split.test_from is '", text,
                   "', but the column is one of dates or times: \"2026-11-20\" or \"2026-11-20 "
                   "12:30:00\", in UTC"));
}

int64_t NanosPerUnit(const ParquetColumn& column) {
  constexpr int64_t kNanosPerSecond = 1000000000;
  return column.kind == Kind::kDate ? 86400 * kNanosPerSecond
                                    : kNanosPerSecond / column.units_per_second;
}

}  // namespace

absl::StatusOr<ParquetParser> ParquetParser::Make(const Job& job, const Data& data,
                                                  const std::string& path,
                                                  const std::vector<ParquetColumn>& columns,
                                                  const TextParserOptions& options) {
  ColumnNames names{{}, path};
  for (const ParquetColumn& column : columns) names.names.push_back(column.name);
  ASSIGN_OR_RETURN(TextParser plan, TextParser::Make(job, data, std::move(names), options));
  ParquetParser parser(std::move(plan));
  parser.AddColumns(columns);
  RETURN_IF_ERROR(parser.CheckColumns(job, path));
  if (parser.plan_.split_.has_value()) {
    const ParquetColumn& column = parser.Column(parser.plan_.split_->column());
    if (IsTime(column.kind)) {
      ASSIGN_OR_RETURN(parser.test_from_,
                       ParseTime(data.split().test_from(), NanosPerUnit(column)));
    }
  }
  return parser;
}

void ParquetParser::AddColumns(const std::vector<ParquetColumn>& columns) {
  std::vector<int> used = plan_.labels_;
  for (const TextParser::Number& number : plan_.numbers_) used.push_back(number.column);
  for (const TextParser::Keys& keys : plan_.features_) {
    if (keys.column >= 0) used.push_back(keys.column);
    if (keys.weights >= 0) used.push_back(keys.weights);
  }
  used.insert(used.end(), plan_.carried_.begin(), plan_.carried_.end());
  if (plan_.weight_ >= 0) used.push_back(plan_.weight_);
  if (plan_.group_ >= 0) used.push_back(plan_.group_);
  if (plan_.split_.has_value()) used.push_back(plan_.split_->column());
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  places_.assign(columns.size(), -1);
  for (const int column : used) {
    places_[column] = static_cast<int>(columns_.size());
    columns_.push_back(columns[column]);
  }
}

absl::Status ParquetParser::CheckColumns(const Job& job, const std::string& path) const {
  for (const ParquetColumn& column : columns_) {
    if (column.kind != Kind::kUnsupported) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the column '", column.name, "' is of type ", column.type,
                     ", which can't be read; cast it to a number, a string or a timestamp"));
  }
  const auto wrong = [&](absl::string_view use, const ParquetColumn& column) {
    return absl::InvalidArgumentError(absl::StrCat(use, ", but the column '", column.name, "' of ",
                                                   path, " is of type ", column.type));
  };
  for (const int label : plan_.labels_) {
    if (Column(label).is_list) return wrong("data.label.column is one value a row", Column(label));
  }
  if (plan_.group_ >= 0 && Column(plan_.group_).is_list) {
    return wrong("data.group is one value a row", Column(plan_.group_));
  }
  for (const int carried : plan_.carried_) {
    if (Column(carried).is_list) return wrong("--column is one value a row", Column(carried));
  }
  if (plan_.weight_ >= 0 && (Column(plan_.weight_).is_list || IsTime(Column(plan_.weight_).kind))) {
    return wrong("data.weight is one number a row", Column(plan_.weight_));
  }
  if (plan_.split_.has_value() && Column(plan_.split_->column()).is_list) {
    return wrong("data.split.column is one value a row", Column(plan_.split_->column()));
  }
  const std::vector<const Feature*> numeric = NumericFeatures(job);
  for (size_t i = 0; i < numeric.size(); ++i) {
    const ParquetColumn& column = Column(plan_.numbers_[i].column);
    if (!column.is_list && !IsTime(column.kind)) continue;
    return wrong(absl::StrCat("feature '", numeric[i]->name(), "' is numeric"), column);
  }
  const std::vector<const Feature*> embedded = EmbeddedFeatures(job);
  for (size_t i = 0; i < embedded.size(); ++i) {
    for (const int of : plan_.features_[i].cross) {
      const ParquetColumn& column = Column(plan_.features_[of].column);
      if (!column.is_list) continue;
      return wrong(absl::StrCat("feature '", embedded[i]->name(), "' crosses single values"),
                   column);
    }
    if (plan_.features_[i].column < 0) continue;
    const ParquetColumn& column = Column(plan_.features_[i].column);
    const Feature::Categorical& categorical = embedded[i]->categorical();
    if (plan_.features_[i].weights >= 0) {
      const ParquetColumn& weights = Column(plan_.features_[i].weights);
      if (weights.is_list != column.is_list || IsTime(weights.kind)) {
        return wrong(absl::StrCat("the weights of feature '", embedded[i]->name(), "' are ",
                                  column.is_list ? "a list of numbers" : "numbers",
                                  ", as its column is ", column.is_list ? "a list" : "no list"),
                     weights);
      }
    }
    // Lists of floats are vectors: a hash of their numbers' texts would mean nothing.
    if (column.is_list && column.kind == Kind::kFloat && categorical.boundaries().empty() &&
        categorical.id() == Feature::Categorical::STRING) {
      return wrong(absl::StrCat("feature '", embedded[i]->name(),
                                "' is made of ids or texts (give each number of a list a column "
                                "of its own, as a numeric feature)"),
                   column);
    }
    const bool is_number =
        categorical.boundaries_size() > 0 || categorical.id() == Feature::Categorical::INTEGER;
    if (is_number && IsTime(column.kind)) {
      return wrong(absl::StrCat("feature '", embedded[i]->name(), "' is made of numbers"), column);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> ParquetParser::Find(
    const std::string& path, const std::vector<ParquetColumn>& columns) const {
  std::vector<int> found;
  for (const ParquetColumn& wanted : columns_) {
    const auto at = std::find_if(columns.begin(), columns.end(), [&](const ParquetColumn& column) {
      return column.name == wanted.name;
    });
    if (at == columns.end()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": has no column '", wanted.name,
                                                     "', as ", plan_.columns_.source, " has"));
    }
    if (at->type != wanted.type) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the column '", wanted.name, "' is of type ", at->type, ", not ",
                       wanted.type, " as in ", plan_.columns_.source));
    }
    found.push_back(static_cast<int>(at - columns.begin()));
  }
  return found;
}

}  // namespace thermocline
