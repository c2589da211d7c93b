#include "common/job/schedule_text.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

// Keeps the parser from writing to the log.
class Silent : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

}  // namespace

std::string ScheduleToText(const ScheduleState& state) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintToString(state, &text);
  return std::string(absl::StripAsciiWhitespace(text));
}

absl::StatusOr<ScheduleState> ParseSchedule(absl::string_view text) {
  ScheduleState state;
  Silent errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  const bool is_parsed = parser.ParseFromString(std::string(text), &state);
  if (is_parsed && state.first_step() >= 0 && state.rate() >= 0) return state;
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no schedule"));
}

}  // namespace thermocline
