// Guesses from a text file's first rows how it is written.
#ifndef THERMOCLINE_WORKER_INSPECT_TEXT_LAYOUT_H_
#define THERMOCLINE_WORKER_INSPECT_TEXT_LAYOUT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/arrow/object_store.h"
#include "worker/data/text/line_stream.h"

namespace thermocline {

// What the user knows about the files; "" and {}: nothing.
struct LayoutHints {
  std::string separator;             // One character.
  std::vector<std::string> columns;  // The columns' names, if the files have no header.
};

struct TextLayout {
  LineFormat format;
  bool is_criteo = false;  // Label, 13 integers, 26 hexadecimal categories.
  bool has_header = false;
  std::vector<std::string> columns;  // The columns' names.
  std::vector<char> separators;      // [columns] Between a list's values; 0: no list.
};

// Guesses the layout of a file. `store` may be null if `path` is no object. Errors: LineStream's;
// kInvalidArgument (the file is empty, is no text, has one column, or has columns that no separator
// divides alike; hints don't fit: says which, and what would help).
absl::StatusOr<TextLayout> GuessTextLayout(const std::string& path, const LayoutHints& hints,
                                           ObjectStore* store = nullptr);

// Checks by its first rows that `path` is written like the first file. Errors: GuessTextLayout's.
absl::Status CheckSameLayout(const std::string& path, const std::string& first,
                             const TextLayout& layout, ObjectStore* store = nullptr);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_INSPECT_TEXT_LAYOUT_H_
