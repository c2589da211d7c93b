// How a text parser describes a malformed line.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "worker/data/text/text_parser.h"

namespace thermocline {
namespace {

std::string Columns(size_t count) {
  return absl::StrCat(count, count == 1 ? " column" : " columns");
}

// Whether a line has commas but no tab.
std::string DescribeCommas(absl::string_view line) {
  const std::vector<absl::string_view> columns = absl::StrSplit(line, ',');
  const bool has_header = LooksLikeHeader(columns);
  return absl::StrCat(
      columns.size(), " columns separated by commas; CRITEO_TSV separates them by tabs",
      has_header
          ? absl::StrCat(", and has no header, which the line looks like (", QuoteText(line), ")")
          : "",
      "; describe the file with data.train { csv {} } and `feature`");
}

}  // namespace

std::string TextParser::DescribeCount(absl::string_view line, size_t columns) const {
  const size_t wanted = columns_.names.size() - columns_.num_keys;
  std::string text = absl::StrCat(Columns(columns), ", not ", wanted, " (", columns_.source, ")");
  if (columns > 1) return text;
  for (const char other : {',', '\t', ';', '|'}) {
    const auto others = static_cast<size_t>(std::count(line.begin(), line.end(), other));
    if (others + 1 != wanted || other == format_.separator) continue;
    absl::StrAppend(&text, "; with separator: ",
                    other == '\t' ? "\"\\t\"" : absl::StrCat("\"", std::string(1, other), "\""),
                    " they would be ", wanted);
  }
  return text;
}

std::string TextParser::DescribeColumn(int column, absl::string_view text) const {
  float ignored;
  if (needs_labels_ && std::count(labels_.begin(), labels_.end(), column) > 0 &&
      !ParseLabel(text, &ignored)) {
    return absl::StrCat(QuoteText(text), " is not 0 or 1");
  }
  if (column == weight_ && !ParseWeight(text, &ignored)) {
    return absl::StrCat(QuoteText(text), " is not a weight: a number, 0 or more");
  }
  std::string wrong;
  for (const Number& number : numbers_) {
    if (wrong.empty() && number.column == column) wrong = number.reader.Describe(text);
  }
  for (const Keys& keys : features_) {
    if (wrong.empty() && keys.column == column) wrong = keys.reader->Describe(text);
  }
  const bool is_split = split_.has_value() && split_->column() == column;
  if (wrong.empty() && is_split && !split_->IsHeldOut(text).has_value()) {
    wrong = absl::StrCat(QuoteText(text), " is not a number, as data.split.test_from is");
  }
  return wrong;
}

std::string TextParser::Describe(absl::string_view line, absl::Span<const std::string> keys) const {
  line = WithoutLineEnd(line);
  if (line.empty()) return "the line is empty";
  LineColumns split;
  SplitLine(line, format_, &split);
  const absl::Span<const absl::string_view> columns = split.columns;
  if (split.misquoted >= 0) {
    const auto lines = std::count(line.begin(), line.begin() + split.misquoted_at, '\n');
    return absl::StrCat("column ", split.misquoted + 1, " begins with a quote",
                        lines == 0 ? "" : absl::StrCat(", ", lines, " lines further on,"),
                        " that is not closed at its end (a quote within quotes is written twice; "
                        "quotes: false reads it as it is)");
  }
  if (is_criteo_ && columns.size() == 1 && line.find(',') != line.npos) return DescribeCommas(line);
  if (is_criteo_ && LooksLikeHeader(columns)) {
    return absl::StrCat("the line looks like a header (", QuoteText(line),
                        "), which CRITEO_TSV doesn't have; leave it out: tail -n +2, or describe "
                        "the file with data.train { csv {} } and `feature`");
  }
  if (columns.size() + keys.size() != columns_.names.size()) {
    return DescribeCount(line, columns.size());
  }
  std::vector<absl::string_view> all(columns.begin(), columns.end());
  all.insert(all.end(), keys.begin(), keys.end());
  return DescribeColumns(all);
}

std::string TextParser::DescribeColumns(absl::Span<const absl::string_view> columns) const {
  for (size_t c = 0; c < columns.size(); ++c) {
    std::string wrong = DescribeColumn(static_cast<int>(c), columns[c]);
    for (const Keys& keys : features_) {
      if (!wrong.empty() || keys.weights != static_cast<int>(c)) continue;
      wrong = keys.list_weights->Describe(*keys.reader, columns_.names[keys.column],
                                          columns[keys.column], columns[c]);
    }
    if (wrong.empty()) continue;
    return absl::StrCat("column ", c + 1, " ('", columns_.names[c], "'): ", wrong);
  }
  return "the line is malformed";
}

}  // namespace thermocline
