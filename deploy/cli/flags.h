// The command line of one subcommand.
#ifndef THERMOCLINE_DEPLOY_CLI_FLAGS_H_
#define THERMOCLINE_DEPLOY_CLI_FLAGS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace thermocline {

struct FlagSpec {
  std::string name;   // without dashes: "run-dir"
  std::string value;  // what its value is called in the help: "DIR"; empty: a switch
  std::string help;
  bool repeated = false;
};

class Flags {
 public:
  // Accepts `--run-dir DIR`, `--run-dir=DIR`, `--run_dir=DIR`; `--` ends the flags. What is no flag
  // is a positional argument. Errors: kInvalidArgument (an unknown flag, with a suggestion; a
  // missing or unwanted value; a flag given twice that may be given once).
  static absl::StatusOr<Flags> Parse(const std::vector<FlagSpec>& specs,
                                     const std::vector<std::string>& arguments);

  bool Has(absl::string_view name) const { return values_.count(std::string(name)) > 0; }
  // The value of a flag, or `fallback` where it wasn't given.
  std::string Get(absl::string_view name, absl::string_view fallback = "") const;
  std::vector<std::string> GetAll(absl::string_view name) const;
  // Errors: kInvalidArgument (no whole number in [low, high]; names the flag).
  absl::StatusOr<int64_t> GetInt(absl::string_view name, int64_t fallback, int64_t low,
                                 int64_t high) const;
  const std::vector<std::string>& positional() const { return positional_; }

 private:
  std::map<std::string, std::vector<std::string>> values_;  // switches have ""
  std::vector<std::string> positional_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_FLAGS_H_
