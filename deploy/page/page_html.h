// The document of a page as HTML.
#ifndef THERMOCLINE_DEPLOY_PAGE_PAGE_HTML_H_
#define THERMOCLINE_DEPLOY_PAGE_PAGE_HTML_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace thermocline {

// JSON in UTF-8; what is no UTF-8 in its texts is replaced by U+FFFD.
std::string DumpJson(const nlohmann::ordered_json& json);

// The page with the document in it. No text of the document can end the script or name a place to
// fill, and the page's Content-Security-Policy allows its own style and script alone.
std::string RenderPage(const nlohmann::ordered_json& document);

// What a browser without JavaScript shows: how each run stands, its figures, and its progress,
// evaluations, events and tables.
std::string RenderStaticTables(const nlohmann::ordered_json& document);

// Text for HTML, also within an attribute in double quotes.
std::string EscapeHtml(absl::string_view text);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PAGE_PAGE_HTML_H_
