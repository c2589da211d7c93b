#include "deploy/runner/log_tail.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_split.h"

namespace thermocline {
namespace {

constexpr std::streamoff kTailBytes = 64 << 10;
constexpr size_t kMaxLineBytes = 500;

}  // namespace

std::vector<std::string> LogTail(const std::string& path, int max_lines, uint64_t begin_bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::streamoff size = file.tellg();
  const std::streamoff first = std::min(size, static_cast<std::streamoff>(begin_bytes));
  const std::streamoff begin = std::max(first, size - kTailBytes);
  std::string text(static_cast<size_t>(size - begin), '\0');
  file.seekg(begin);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (begin > first) lines.erase(lines.begin());  // begins somewhere in a line
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  const size_t wanted = static_cast<size_t>(std::max(0, max_lines));
  if (lines.size() > wanted) lines.erase(lines.begin(), lines.end() - wanted);
  for (std::string& line : lines) line.resize(std::min(line.size(), kMaxLineBytes));
  return lines;
}

}  // namespace thermocline
