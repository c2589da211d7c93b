#include "deploy/inspect/column_names.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace thermocline {
namespace {

using Words = std::set<std::string>;

// "userId" and "USER_ID" as {"user", "id"}.
Words WordsOf(absl::string_view name) {
  std::string spaced;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool begins = i > 0 && absl::ascii_isupper(name[i]) && absl::ascii_islower(name[i - 1]);
    if (begins) spaced += ' ';
    spaced += absl::ascii_isalnum(name[i]) ? absl::ascii_tolower(name[i]) : ' ';
  }
  return absl::StrSplit(spaced, ' ', absl::SkipEmpty());
}

bool HasWord(const std::string& name, const Words& words) {
  const Words own = WordsOf(name);
  return std::any_of(own.begin(), own.end(),
                     [&](const std::string& word) { return words.count(word) > 0; });
}

}  // namespace

LabelName ClassifyLabelName(const std::string& name) {
  static const auto* const kLabels =
      new Words{"label",      "labels",      "target",   "y",          "outcome",   "click",
                "clicks",     "clicked",     "clk",      "clicking",   "conv",      "conversion",
                "converted",  "conversions", "purchase", "purchased",  "purchases", "bought",
                "buy",        "install",     "installs", "installed",  "response",  "responded",
                "like",       "liked",       "likes",    "subscribed", "churn",     "churned",
                "attributed", "attribution", "survived", "ordered",    "booked"};
  static const auto* const kPerhaps = new Words{
      "event", "action", "class",  "behavior", "behaviour", "ctr",  "cvr",   "order",
      "sale",  "sold",   "signup", "success",  "result",    "sign", "reply", "engagement"};
  static const auto* const kAround = new Words{"is", "has", "was", "did", "flag", "binary", "col"};
  bool has_label = false, has_other = false, has_word = false;
  for (std::string word : WordsOf(name)) {
    if (word.size() > 4) word = std::string(absl::StripPrefix(word, "is"));  // "isclick"
    const bool is_label = kLabels->count(word) > 0;
    has_label = has_label || is_label;
    has_word = has_word || is_label || kPerhaps->count(word) > 0;
    has_other = has_other || (!is_label && kAround->count(word) == 0);
  }
  if (has_label && !has_other) return LabelName::kYes;
  return has_word ? LabelName::kHasWord : LabelName::kNo;
}

bool IsNameOfIndex(const std::string& name) {
  absl::string_view number = name;
  return name.empty() || (absl::ConsumePrefix(&number, "Unnamed: ") &&
                          number.find_first_not_of("0123456789") == absl::string_view::npos);
}

bool IsNameOfId(const std::string& name) {
  static const auto* const kWords = new Words{
      "id",   "ids",   "user",   "item",     "category", "cat",    "type",    "code",  "zip",
      "site", "app",   "device", "campaign", "model",    "brand",  "shop",    "city",  "region",
      "ad",   "os",    "lang",   "channel",  "country",  "gender", "uid",     "iid",   "sku",
      "pos",  "query", "banner", "slot",     "position", "domain", "product", "store", "session"};
  return HasWord(name, *kWords);
}

bool IsNameOfNumber(const std::string& name) {
  static const auto* const kWords =
      new Words{"count",  "cnt",    "num",     "price",    "cost",     "amount", "age",   "score",
                "rate",   "ratio",  "length",  "duration", "len",      "size",   "total", "avg",
                "mean",   "sum",    "days",    "hours",    "minutes",  "views",  "bid",   "weight",
                "height", "width",  "seconds", "distance", "quantity", "qty",    "value", "revenue",
                "n",      "number", "balance", "income"};
  return HasWord(name, *kWords);
}

}  // namespace thermocline
