#include "worker/inspect/text_layout.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/job/job_data.h"
#include "proto/job.pb.h"
#include "worker/data/column_values.h"
#include "worker/data/row_stream.h"
#include "worker/data/text/list_separator.h"
#include "worker/data/text/number_text.h"
#include "worker/data/text/text_parser.h"
#include "worker/inspect/time_forms.h"

namespace thermocline {
namespace {

using Row = std::vector<std::string>;

// ------------------------------------------------------------------------------------------------

// Whether the first row of a text file names the columns of the others.

// Columns in which the rows after the first have one form: those where the first row has it, too,
// and those where it has another.
struct Likeness {
  std::vector<size_t> like, unlike;

  void Add(size_t column, bool is_like) { (is_like ? like : unlike).push_back(column); }
};

// The rows of a column mostly have a form if at least this share of them has it.
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
  std::vector<std::vector<absl::string_view>> values_;  // [columns] The other rows' values.
};

// Whether the first of `rows` is no row like the others: where they have numbers or times, it has
// text. What names are made of does not matter, so that a header which `train` refuses is one here,
// too. `columns`: how many most rows have; rows with
// more or fewer count for nothing. Errors: kInvalidArgument (the row
// is as much the one as the other: says which columns speak for what, and what to do).
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

// ------------------------------------------------------------------------------------------------

// So many rows of a file show how it is written.
constexpr int64_t kHeadRows = 1000;
// At least this share of the rows has to have as many columns as most rows have.
constexpr double kMinAlike = 0.9;
constexpr char kSeparators[] = {'\t', ',', ';', '|', '\x01', ' '};

struct Head {
  LineFormat format;
  std::vector<Row> rows;
  size_t columns = 0;  // So many columns most rows have.
  double alike = 0;    // Share of the rows that have so many.
  bool is_misquoted = false;
};

absl::StatusOr<Head> ReadHead(const std::string& path, const LineFormat& format,
                              ObjectStore* store) {
  const std::atomic<bool> never{false};
  ASSIGN_OR_RETURN(const std::unique_ptr<LineStream> lines,
                   LineStream::Open(path, &never, format, /*file=*/0, store));
  RawBatch raw;
  raw.ClearText();
  ASSIGN_OR_RETURN(const int64_t rows, lines->Append(kHeadRows, &raw));
  Head head;
  head.format = format;
  std::map<size_t, size_t> counts;
  LineColumns columns;
  for (int64_t row = 0; row < rows; ++row) {
    const absl::string_view line = WithoutLineEnd(raw.TextOf(row));
    if (line.find('\0') != line.npos) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the file is no text: row ", row + 1,
                                                     " has bytes that are no characters"));
    }
    SplitLine(line, format, &columns);
    if (columns.misquoted >= 0) {
      head.is_misquoted = true;
      continue;
    }
    head.rows.emplace_back(columns.columns.begin(), columns.columns.end());
    ++counts[columns.columns.size()];
  }
  size_t most = 0;
  for (const auto& [size, count] : counts) {
    if (count >= most) head.columns = size;
    most = std::max(most, count);
  }
  if (rows > 0) head.alike = static_cast<double>(most) / static_cast<double>(rows);
  return head;
}

// With quotes where they are in use.
absl::StatusOr<Head> ReadHeadWithOrWithoutQuotes(const std::string& path, char separator,
                                                 ObjectStore* store) {
  absl::StatusOr<Head> quoted = ReadHead(path, {separator, /*quotes=*/true}, store);
  if (quoted.ok() && !quoted->is_misquoted) return quoted;
  absl::StatusOr<Head> plain = ReadHead(path, {separator, /*quotes=*/false}, store);
  // A few quotes within quoted columns are wrong, and the rows without those are right.
  if (quoted.ok() && plain.ok() && quoted->alike > plain->alike) return quoted;
  return plain;
}

std::string NameOf(char separator) {
  switch (separator) {
    case '\t':
      return "tabs";
    case ' ':
      return "spaces";
    case '\x01':
      return "\\x01";
    default:
      return absl::StrCat("'", std::string(1, separator), "'");
  }
}

// The separator that gives most rows the same number of columns, more than one; among such the one
// with the most columns.
absl::StatusOr<Head> FindSeparator(const std::string& path, const LayoutHints& hints,
                                   ObjectStore* store) {
  std::vector<char> candidates(std::begin(kSeparators), std::end(kSeparators));
  if (!hints.separator.empty()) candidates = {hints.separator[0]};
  Head best;
  std::vector<std::string> tried;
  for (const char separator : candidates) {
    ASSIGN_OR_RETURN(Head head, ReadHeadWithOrWithoutQuotes(path, separator, store));
    if (head.rows.empty() && !head.is_misquoted) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the file is empty"));
    }
    if (head.columns < 2) continue;
    // Spaces are in any text: they separate only where nothing else does.
    if (separator == ' ' && best.alike >= kMinAlike) continue;
    tried.push_back(absl::StrCat(NameOf(separator), " give ", static_cast<int>(head.alike * 100),
                                 "% of the rows ", head.columns, " columns"));
    const auto rank = [](const Head& head) {
      return std::pair(head.alike >= kMinAlike, head.columns);
    };
    if (best.columns == 0 || rank(head) > rank(best)) best = std::move(head);
  }
  if (best.columns == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has one column only; a log needs a label and what it depends on",
                     hints.separator.empty() ? " (--separator C names another separator)" : ""));
  }
  if (best.alike >= kMinAlike) return best;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": its rows have different numbers of columns (",
                   absl::StrJoin(tried, ", "), "); --separator C says what divides them"));
}

bool IsNumber(absl::string_view text) { return ParseNumber(text).has_value(); }

bool IsCriteo(const Head& head) {
  constexpr size_t kIntegers = 13, kCategories = 26;
  if (head.format.separator != '\t' || head.columns != 1 + kIntegers + kCategories) return false;
  const auto is_hex = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), absl::ascii_isxdigit);
  };
  for (const Row& row : head.rows) {
    if (row.size() != head.columns) continue;
    if (row[0] != "0" && row[0] != "1") return false;
    for (size_t c = 1; c < row.size(); ++c) {
      if (c <= kIntegers ? !row[c].empty() && !IsNumber(row[c]) : !is_hex(row[c])) return false;
    }
  }
  return true;
}

char ListSeparatorOf(const Head& head, size_t column, size_t first_row) {
  std::vector<absl::string_view> texts;
  for (size_t r = first_row; r < head.rows.size(); ++r) {
    if (head.rows[r].size() == head.columns) texts.push_back(head.rows[r][column]);
  }
  return GuessListSeparator(texts, head.format.separator);
}

// Errors: kInvalidArgument (the first row has the names that --columns gives, or text in all
// columns of numbers and times).
absl::Status CheckNoHeader(const std::string& path, const Head& head,
                           const std::vector<std::string>& names) {
  const Row& first = head.rows[0];
  if (first.size() != head.columns) return absl::OkStatus();
  const Likeness numbers = FirstRow(head.rows, head.columns).ByNumbers();
  if (first != names && (numbers.unlike.empty() || !numbers.like.empty())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ":1: the first line looks like a header (",
                   QuoteText(absl::StrJoin(first, std::string(1, head.format.separator))),
                   "), and --columns names the columns of files without one; leave --columns out, "
                   "or the line (tail -n +2)"));
}

absl::Status NameColumns(const std::string& path, const Head& head, const LayoutHints& hints,
                         ObjectStore* store, TextLayout* layout) {
  if (!hints.columns.empty()) {
    layout->columns = hints.columns;
    RETURN_IF_ERROR(CheckNoHeader(path, head, hints.columns));
    if (hints.columns.size() == head.columns) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--columns names ", hints.columns.size(),
                                                   " columns, and the rows of ", path, " have ",
                                                   head.columns));
  }
  layout->is_criteo = IsCriteo(head);
  if (!layout->is_criteo) {
    ASSIGN_OR_RETURN(layout->has_header, HasHeader(path, head.rows, head.columns));
  }
  if (layout->has_header) {
    ASSIGN_OR_RETURN(layout->columns, ReadHeader(path, head.format, store));
  } else if (layout->is_criteo) {
    Data::Files files;
    files.mutable_criteo_tsv()->set_integers(13);
    files.mutable_criteo_tsv()->set_categories(26);
    layout->columns = TextColumns(files);
  } else {
    for (size_t c = 1; c <= head.columns; ++c) layout->columns.push_back(absl::StrCat("col", c));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TextLayout> GuessTextLayout(const std::string& path, const LayoutHints& hints,
                                           ObjectStore* store) {
  ASSIGN_OR_RETURN(Head head, FindSeparator(path, hints, store));
  TextLayout layout;
  RETURN_IF_ERROR(NameColumns(path, head, hints, store, &layout));
  // Criteo's form has no quotes, and tabs seldom come with them.
  const bool has_quotes = std::any_of(head.rows.begin(), head.rows.end(), [](const Row& row) {
    return std::any_of(row.begin(), row.end(), [](const std::string& text) {
      return text.find_first_of("\"\t\n,") != text.npos;
    });
  });
  if (layout.is_criteo || (head.format.separator == '\t' && !has_quotes)) {
    head.format.quotes = false;
  }
  layout.format = head.format;
  for (size_t c = 0; c < head.columns; ++c) {
    layout.separators.push_back(
        layout.is_criteo ? 0 : ListSeparatorOf(head, c, layout.has_header ? 1 : 0));
  }
  return layout;
}

absl::Status CheckSameLayout(const std::string& path, const std::string& first,
                             const TextLayout& layout, ObjectStore* store) {
  ASSIGN_OR_RETURN(const Head head, ReadHead(path, layout.format, store));
  if (head.rows.empty() && !head.is_misquoted) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the file is empty"));
  }
  if (head.columns == layout.columns.size() && head.alike >= kMinAlike) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": its rows have ", head.columns, " columns by ",
                   NameOf(layout.format.separator), ", and those of ", first, " have ",
                   layout.columns.size(), "; files of one log are written alike"));
}

}  // namespace thermocline
