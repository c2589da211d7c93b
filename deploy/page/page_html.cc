#include "deploy/page/page_html.h"

#include <openssl/sha.h>

#include <map>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "deploy/page/page_text.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// A source of a Content-Security-Policy: the hash of an inline style or script.
std::string HashOf(absl::string_view text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return absl::Base64Escape(
      absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest)));
}

// "<" would end the script or begin a comment; the other two end a line of a script.
std::string ForScript(const Json& document) {
  return absl::StrReplaceAll(DumpJson(document),
                             {{"<", "\\u003c"}, {"\u2028", "\\u2028"}, {"\u2029", "\\u2029"}});
}

std::string TitleOf(const Json& document) {
  std::set<std::string> names;
  std::vector<std::string> in_order;
  for (const Json& run : document["runs"]) {
    const auto name = run["job"]["name"].get<std::string>();
    if (names.insert(name).second) in_order.push_back(name);
  }
  return EscapeHtml(absl::StrJoin(in_order, " and "));
}

// Replaces each {{NAME}} of `text` that has a value, in one pass: values are not looked at.
std::string Fill(absl::string_view text, const std::map<std::string, std::string>& values) {
  std::string filled;
  while (true) {
    const size_t begin = text.find("{{");
    const size_t end = begin == absl::string_view::npos ? begin : text.find("}}", begin);
    if (end == absl::string_view::npos) return absl::StrCat(filled, text);
    const auto value = values.find(std::string(text.substr(begin + 2, end - begin - 2)));
    absl::StrAppend(&filled, text.substr(0, begin),
                    value == values.end() ? text.substr(begin, end + 2 - begin)
                                          : absl::string_view(value->second));
    text.remove_prefix(end + 2);
  }
}

}  // namespace

std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string EscapeHtml(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string RenderPage(const Json& document) {
  return Fill(kPageHtml, {{"TITLE", TitleOf(document)},
                          {"STYLE", kPageStyle},
                          {"STYLE_HASH", HashOf(kPageStyle)},
                          {"SCRIPT", kPageScript},
                          {"SCRIPT_HASH", HashOf(kPageScript)},
                          {"REPORT", ForScript(document)},
                          {"STATIC", RenderStaticTables(document)}});
}

}  // namespace thermocline
