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
skewed ids, labels from a planted model. The same flags give the same bytes. Existing files of the
same names are overwritten. With --test-rows 0 the folder must not have held-out rows of another log.

--correlation makes the ids of a row popular together, and leaves how often each id comes as it is:
more rows have popular ids alone, which is what `fae` feeds on. tests/benchmarks/fit_correlation.py
finds the value at which as large a share of the rows is hot as in a real log.

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
  AddValue(command, "--correlation", &flags->correlation, "C",
           "how far the ids of a row are popular together, in [0, 1]; default 0: not at all");
  AddValue(command, "--threads", &flags->threads, "N", "0 (default): one for each core")
      ->transform(WholeNumber(0, 1024));
  command->callback([=] {
    flags->test_rows = test_rows->value_or(flags->rows / 10);
    *action = [=] { return RunGenerate(*flags); };
  });
}

void AddInspect(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = AddCommand(
      app, "inspect", "says what is in a log, and drafts a first job file for it",
      R"(Reads every row once, in bounded memory, and guesses how the files are written: separator,
header, quotes; what type each column has, and what it is good for: label, feature, time. Prints
distinct values (exact up to 131,072 a column; beyond that an estimate, with two standard
deviations), missing values, skew, the range and moments of numbers, the rate of the label, and
what the tables would take. FILE is a file of text (plain, .gz or .zst) or Parquet, a folder, a
pattern, each here or as s3://BUCKET/KEY (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, ... say where), or a
folder of npy files; several are read as one.

--job writes a job file that trains as it is, with comments on what was guessed. It overwrites
nothing. A label that is wrongly guessed is named with --label.

examples:
  thermocline inspect train.csv.gz
  thermocline inspect 'logs/day-*.tsv' --label buy --job first.textproto
  thermocline inspect events.csv --columns user,item,event,time --label event --positive cart,buy
  thermocline inspect train.csv --json > figures.json)");
  AddValue(command, "FILE", &flags->paths, "PATH", "the log")->required();
  AddValue(command, "--job", &flags->job, "FILE", "writes a job file for the log");
  AddValue(command, "--label", &flags->label, "NAME", "the column of the label");
  AddValue(command, "--positive", &flags->positive, "TEXT,TEXT",
           "the label's texts that are a 1; all others are a 0");
  AddValue(command, "--columns", &flags->columns, "NAME,NAME",
           "the columns' names; the files have no header then");
  AddValue(command, "--separator", &flags->separator, "C",
           "the character between columns; \\t is a tab");
  AddValue(command, "--rows", &flags->max_rows, "N", "reads the first N rows alone")
      ->transform(WholeNumber(1, int64_t{1} << 40));
  command->add_flag("--json", flags->json,
                    "prints the figures as JSON; progress goes to standard error");
  AddValue(command, "--bin-dir", &flags->bin_dir, "DIR", "the folder of thermocline-inspect");
  OnCommand(command, action, RunInspect, flags);
}

void AddPlan(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = AddCommand(
      app, "plan", "says what a job will need of memory, disk and network",
      R"(Computes, without running the job, what its servers and workers will need of memory (rows,
optimizer state, index, pushes that wait, checkpoints), of device memory, of disk (checkpoints,
push logs, RocksDB) and of bytes on the network in a step, beside what this machine has.

How many rows the tables will have is known from --figures (what `inspect --json` has printed for
the job's data), from --scan (which reads the data now), or from `buckets` and the like in the job.
Without these the plan lacks those tables, and says so. Exit code 1: the job does not fit.

examples:
  thermocline inspect train.csv --json > figures.json
  thermocline plan job.textproto --figures figures.json --servers 4
  thermocline plan job.textproto --scan --samples-per-s 100000)");
  AddJobFlags(command, flags.get(), true, nullptr);
  AddValue(command, "--figures", &flags->figures, "FILE", "what inspect --json has printed");
  command->add_flag("--scan", flags->scan, "reads the job's data first, as inspect does");
  AddValue(command, "--samples-per-s", &flags->samples_per_s, "N",
           "the speed of training, for the network's bytes per second");
  command->add_flag("--json", flags->json,
                    "prints the plan as JSON; progress goes to standard error");
  OnCommand(command, action, RunPlan, flags);
}

void AddCalibrate(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* command = AddCommand(
      app, "calibrate", "says which rows would be hot, and what that is worth",
      R"(Counts the lookups of a job's training rows and says, for each budget of device memory, how
often a row must be looked up to be hot (FAE), how many rows that is, by an estimate and counted, and
which share of all lookups and of all samples reads hot rows only. It trains nothing and keeps
nothing. A job without `fae` is taken as one with it.

examples:
  thermocline calibrate job.textproto --budgets 1MiB,4MiB,64MiB
  thermocline calibrate job.textproto --budgets 4MiB --samples 0.01,0.05,0.2,1)");
  AddJobFlags(command, flags.get(), true, nullptr);
  AddValue(command, "--budgets", &flags->budgets, "SIZE,SIZE",
           "device memory for hot rows; default: the job's, or 64MiB,256MiB,1GiB");
  AddValue(command, "--samples", &flags->samples, "SHARE,SHARE",
           "shares of the rows to count in; default: the job's calibration.sample_share");
  command->add_flag("--json", flags->json,
                    "prints the figures as JSON; progress goes to standard error");
  OnCommand(command, action, RunCalibrate, flags);
}

}  // namespace thermocline
