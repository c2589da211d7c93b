// Recognizes the names of columns.
#ifndef THERMOCLINE_DEPLOY_INSPECT_COLUMN_NAMES_H_
#define THERMOCLINE_DEPLOY_INSPECT_COLUMN_NAMES_H_

#include <string>

namespace thermocline {

// Whether a name is that of a label.
enum class LabelName {
  kNo,
  kHasWord,  // One of its words is a label's: "ad_click", "event".
  kYes,      // It has no other words: "click", "is_click", "clk", "label", "y".
};
LabelName ClassifyLabelName(const std::string& name);

// Whether it is the name of the index that a data frame writes beside its columns: "" or "Unnamed:
// 0".
bool IsNameOfIndex(const std::string& name);
bool IsNameOfId(const std::string& name);
bool IsNameOfNumber(const std::string& name);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_INSPECT_COLUMN_NAMES_H_
