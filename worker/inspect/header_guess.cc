#include "worker/inspect/header_guess.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker/data/column_values.h"
#include "worker/data/text/number_text.h"
#include "worker/data/text/text_parser.h"
#include "worker/inspect/time_forms.h"

namespace thermocline {
namespace {

using Row = std::vector<std::string>;

// Columns in which the rows after the first have one form: those where the first row has it, too,
// and those where it has another.
struct Likeness {
  std::vector<size_t> like, unlike;

  void Add(size_t column, bool is_like) { (is_like ? like : unlike).push_back(column); }
};

// Of a column whose rows mostly have the form, at least.
constexpr double kMostly = 0.9;
// Rows from which on the absence of a text says something.
constexpr size_t kEnoughRows = 10;
// A column with more distinct values for its rows than one in so many has no few.
constexpr size_t kRowsOfValue = 10;
constexpr size_t kMinFixedLength = 4;

bool IsMissing(absl::string_view text) {
  static const MissingNumbers* const kTexts = new MissingNumbers;
  return text.empty() || kTexts->HasText(text);
}

template <typename HasForm>
bool MostHave(const std::vector<absl::string_view>& values, HasForm has_form) {
  const auto with = std::count_if(values.begin(), values.end(), has_form);
  return !values.empty() &&
         static_cast<double>(with) >= kMostly * static_cast<double>(values.size());
}

class FirstRow {
 public:
  FirstRow(const std::vector<Row>& rows, size_t columns) : first_(rows[0]), values_(columns) {
    for (size_t r = 1; r < rows.size(); ++r) {
      // Files that were joined have the header again.
      if (rows[r].size() != columns || rows[r] == first_) continue;
      for (size_t c = 0; c < columns; ++c) {
        if (!IsMissing(rows[r][c])) values_[c].push_back(rows[r][c]);
      }
    }
  }

  bool OccursAgain(size_t column) const {
    return std::count(values_[column].begin(), values_[column].end(), first_[column]) > 0;
  }

  // By columns of numbers and times.
  Likeness ByNumbers() const {
    Likeness likeness;
    const auto is_number = [](absl::string_view text) { return ParseNumber(text).has_value(); };
    for (size_t c = 0; c < values_.size(); ++c) {
      if (IsMissing(first_[c])) continue;
      if (MostHave(values_[c], is_number)) {
        likeness.Add(c, is_number(first_[c]) || OccursAgain(c));
        continue;
      }
      for (const TimeForm* form : AllTimeForms()) {
        const auto is_time = [form](absl::string_view text) {
          return form->parse(text).has_value();
        };
        if (!MostHave(values_[c], is_time)) continue;
        likeness.Add(c, is_time(first_[c]) || OccursAgain(c));
        break;
      }
    }
    return likeness;
  }

  // By columns of texts that are few, or that all have one length.
  Likeness ByTexts() const {
    Likeness likeness;
    for (size_t c = 0; c < values_.size(); ++c) {
      const std::vector<absl::string_view>& values = values_[c];
      if (IsMissing(first_[c]) || values.size() < kEnoughRows) continue;
      const size_t length = values[0].size();
      std::map<absl::string_view, size_t> counts;
      for (const absl::string_view value : values) ++counts[value];
      if (counts.size() * kRowsOfValue <= values.size()) {
        likeness.Add(c, OccursAgain(c));
      } else if (length >= kMinFixedLength &&
                 std::all_of(values.begin(), values.end(),
                             [&](absl::string_view text) { return text.size() == length; })) {
        likeness.Add(c, first_[c].size() == length);
      }
    }
    return likeness;
  }

  bool LooksLikeNames() const {
    for (size_t c = 0; c < first_.size(); ++c) {
      if (OccursAgain(c) || std::count(first_.begin(), first_.end(), first_[c]) > 1) return false;
    }
    return LooksLikeHeader(std::vector<absl::string_view>(first_.begin(), first_.end()));
  }

  // 0, 1, 2, ...: what a data frame calls columns that have no names, with or without one for the
  // column of its index, which has none.
  bool IsCounted() const {
    constexpr size_t kFew = 4;
    const size_t begin = first_[0].empty() ? 1 : 0;
    for (size_t c = begin; c < first_.size(); ++c) {
      if (first_[c] != absl::StrCat(c - begin)) return false;
    }
    return begin == 1 || first_.size() > kFew;
  }

 private:
  const Row& first_;
  std::vector<std::vector<absl::string_view>> values_;  // Of the other rows, by column.
};

}  // namespace

absl::StatusOr<bool> HasHeader(const std::string& path, const std::vector<Row>& rows,
                               size_t columns) {
  const Row& first = rows[0];
  if (first.size() != columns) return false;
  const FirstRow row(rows, columns);
  if (rows.size() < 2) return row.LooksLikeNames();
  const Likeness numbers = row.ByNumbers();
  if (!numbers.like.empty() && !numbers.unlike.empty() &&
      numbers.unlike.size() < 2 * numbers.like.size()) {
    const size_t name = numbers.unlike[0], number = numbers.like[0];
    return absl::InvalidArgumentError(absl::StrCat(
        path, ":1: is the line a header? Column ", name + 1, " is ", QuoteText(first[name]),
        ", where other lines have numbers or times, but column ", number + 1, " is ",
        QuoteText(first[number]),
        ", as in other lines. Give columns names that are no numbers, or name them with --columns "
        "if the line is a row"));
  }
  if (!numbers.unlike.empty()) return true;
  if (row.IsCounted()) return true;
  if (!numbers.like.empty()) return false;
  const Likeness texts = row.ByTexts();
  if (texts.like.size() != texts.unlike.size()) return texts.unlike.size() > texts.like.size();
  return rows.size() > kEnoughRows && row.LooksLikeNames();
}

}  // namespace thermocline
