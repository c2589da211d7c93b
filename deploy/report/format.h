// Numbers and tables as text for users.
#ifndef THERMOCLINE_DEPLOY_REPORT_FORMAT_H_
#define THERMOCLINE_DEPLOY_REPORT_FORMAT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace thermocline {

std::string FormatCount(uint64_t value);    // "1,234,567"
std::string FormatBytes(uint64_t bytes);    // "512 B", "1.5 MiB"
std::string FormatMicros(double micros);    // "85 us", "1.2 ms", "3.4 s"
std::string FormatSeconds(double seconds);  // "0:09", "1:02:03"

// Rows of cells as text in columns two spaces apart, each line ended. The first column is aligned
// to the left, the others to the right; rows may differ in length. An empty row gives a rule.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_REPORT_FORMAT_H_
