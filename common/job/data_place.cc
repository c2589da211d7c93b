#include "common/job/data_place.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

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

std::string MakeDataPlace(const ScheduleState& state) { return state.SerializeAsString(); }

absl::StatusOr<ScheduleState> ReadDataPlace(absl::string_view place) {
  ScheduleState state;
  if (!state.ParseFromArray(place.data(), static_cast<int>(place.size()))) {
    return absl::DataLossError(absl::StrCat("no place in a job's data: ", place.size(), " bytes"));
  }
  return state;
}

Step FirstStepAt(absl::string_view place) {
  const absl::StatusOr<ScheduleState> state = ReadDataPlace(place);
  return state.ok() && !place.empty() ? Step(state->first_step()) : kNoStep;
}

std::string DataPlaceToText(absl::string_view place) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintToString(ReadDataPlace(place).value_or(ScheduleState()), &text);
  return std::string(absl::StripAsciiWhitespace(text));
}

absl::StatusOr<std::string> ParseDataPlace(absl::string_view text) {
  ScheduleState state;
  Silent errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  const bool is_parsed = parser.ParseFromString(std::string(text), &state);
  if (is_parsed && state.first_step() >= 0 && state.rate() >= 0) return MakeDataPlace(state);
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no schedule"));
}

}  // namespace thermocline
