// The commands about logs: their flags and help pages.
#include <limits>
#include <optional>
#include <utility>

#include "deploy/cli/command_line.h"
#include "deploy/cli/command_pages.h"

namespace thermocline {

void AddGenerate(CLI::App* app, Action* action) {
  constexpr int64_t kMaxRows = int64_t{1} << 40;
  const auto flags = std::make_shared<ClickLogOptions>();
  const auto test_rows = std::make_shared<std::optional<int64_t>>();
  CLI::App* command = AddCommand(
      app, "generate", "writes a synthetic click log with a planted model",
      R"(Writes a click log in the shape of Criteo's Kaggle log: 13 dense and 26 categorical columns,
skewed and correlated ids, labels from a planted model. The same flags give the same bytes. Existing
files of the same names are overwritten. With --test-rows 0 the folder must not have held-out rows
of another log.

examples:
  thermocline generate clicklog --rows 1000000
  thermocline generate clicklog --format tsv.gz --rows 50000 --seed 3)");
  AddValue(command, "FOLDER", &flags->folder, "DIR", "where to write")->required();
  command
      ->add_option_function<std::string>(
          "--format",
          [flags](const std::string& name) {
            flags->format = name == "npy"   ? ClickLogFormat::kNpy
                            : name == "tsv" ? ClickLogFormat::kTsv
                                            : ClickLogFormat::kTsvGzip;
          },
          "npy (default), tsv or tsv.gz")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"npy", "tsv", "tsv.gz"}));
  AddValue(command, "--rows", &flags->rows, "N", "rows to train on; default 1000000")
      ->transform(WholeNumber(1, kMaxRows));
  AddValue(command, "--test-rows", test_rows.get(), "N", "held-out rows; default a tenth of --rows")
      ->transform(WholeNumber(0, kMaxRows));
  AddValue(command, "--seed", &flags->seed, "N", "of all random draws; default 1")
      ->transform(WholeNumber(0, std::numeric_limits<int64_t>::max()));
  AddValue(command, "--skew", &flags->skew, "X",
           "exponent of the ids' Zipf distributions; default 1.05");
  AddValue(command, "--shrink", &flags->shrink, "X",
           "divides the cardinalities of the large columns; default 1");
  AddValue(command, "--threads", &flags->threads, "N", "0 (default): one for each core")
      ->transform(WholeNumber(0, 1024));
  command->callback([=] {
    flags->test_rows = test_rows->value_or(flags->rows / 10);
    *action = [=] { return RunGenerate(*flags); };
  });
}

}  // namespace thermocline
