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
#include "worker/data/batch.h"
#include "worker/data/column_values.h"
#include "worker/data/row_stream.h"
#include "worker/data/text/text_parser.h"
#include "worker/inspect/header_guess.h"

namespace thermocline {
namespace {

// So many rows of a file show how it is written.
constexpr int64_t kHeadRows = 1000;
// Of the rows: those that have as many columns as most, at least.
constexpr double kMinAlike = 0.9;
constexpr char kSeparators[] = {'\t', ',', ';', '|', '\x01', ' '};
constexpr char kListSeparators[] = {'|', ';', ',', '^', '~', ' '};
// Of the values of a list column: those with more than one, at least.
constexpr double kMinLists = 0.1;

using Row = std::vector<std::string>;

struct Head {
  LineFormat format;
  std::vector<Row> rows;
  size_t columns = 0;  // That most rows have.
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

bool IsListOf(absl::string_view text, char separator, bool* has_several) {
  const std::vector<absl::string_view> values = absl::StrSplit(text, separator);
  *has_several = values.size() > 1;
  return std::all_of(values.begin(), values.end(), [&](absl::string_view value) {
    if (value.empty() || absl::ascii_isspace(value.front()) || absl::ascii_isspace(value.back())) {
      return false;
    }
    // Words in a row are a sentence; numbers are ids.
    return separator != ' ' || IsNumber(value);
  });
}

char ListSeparatorOf(const Head& head, size_t column, size_t first_row) {
  for (const char separator : kListSeparators) {
    if (separator == head.format.separator) continue;
    size_t values = 0, lists = 0;
    bool fits = true;
    for (size_t r = first_row; r < head.rows.size() && fits; ++r) {
      if (head.rows[r].size() != head.columns || head.rows[r][column].empty()) continue;
      bool has_several = false;
      fits = IsListOf(head.rows[r][column], separator, &has_several);
      ++values;
      lists += has_several ? 1 : 0;
    }
    if (fits && lists > 0 &&
        static_cast<double>(lists) >= kMinLists * static_cast<double>(values)) {
      return separator;
    }
  }
  return 0;
}

absl::Status NameColumns(const std::string& path, const Head& head, const LayoutHints& hints,
                         ObjectStore* store, TextLayout* layout) {
  if (!hints.columns.empty()) {
    layout->columns = hints.columns;
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
