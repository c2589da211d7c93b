// How a text file is written, guessed from its first rows.
#ifndef THERMOCLINE_WORKER_INSPECT_TEXT_LAYOUT_H_
#define THERMOCLINE_WORKER_INSPECT_TEXT_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/arrow/object_store.h"
#include "worker/data/text/line_stream.h"

namespace thermocline {

// What the user says of the files; "" and {}: nothing.
struct LayoutHints {
  std::string separator;             // One character.
  std::vector<std::string> columns;  // Names; the files have no header then.
};

struct TextLayout {
  LineFormat format;
  bool is_criteo = false;  // Label, 13 integers, 26 hexadecimal categories.
  bool has_header = false;
  std::vector<std::string> columns;  // Names.
  std::vector<char> separators;      // Of the values in each column; 0: single values.
};

// Errors: as LineStream; kInvalidArgument (the file is empty, is no text, has one column, or
// columns that no separator divides alike; hints that don't fit: says which and what would help).
// store: of paths that are objects.
absl::StatusOr<TextLayout> GuessTextLayout(const std::string& path, const LayoutHints& hints,
                                           ObjectStore* store = nullptr);

// Whether `path` is written as the first file is, as far as its first rows show. Errors: as above.
absl::Status CheckSameLayout(const std::string& path, const std::string& first,
                             const TextLayout& layout, ObjectStore* store = nullptr);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_INSPECT_TEXT_LAYOUT_H_
