// What the name of a column says of it.
#ifndef THERMOCLINE_DEPLOY_INSPECT_COLUMN_NAMES_H_
#define THERMOCLINE_DEPLOY_INSPECT_COLUMN_NAMES_H_

#include <string>

namespace thermocline {

enum class LabelName {
  kNo,
  kHasWord,  // "ad_click", "event": a word of it is that of a label.
  kYes,      // "click", "is_click", "clk", "label", "y": nothing else is in it.
};
LabelName JudgeLabelName(const std::string& name);

// Of the index that a data frame writes beside its columns: none, or "Unnamed: 0".
bool IsNameOfIndex(const std::string& name);
bool IsNameOfId(const std::string& name);
bool IsNameOfNumber(const std::string& name);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_INSPECT_COLUMN_NAMES_H_
