// What the command line looks like: every command with its flags and its help page. CLI11 parses it
// and renders the pages. The commands about logs are in log_pages.cc, those of several hosts in
// host_pages.cc, those of engines in engine_pages.cc, benchmarks in bench_pages.cc.
#include "deploy/cli/command_line.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"
#include "deploy/cli/command_pages.h"
#include "deploy/cli/console.h"

namespace thermocline {

void AddJobFlags(CLI::App* command, JobFlags* flags, bool trains, const char* run_dir_help) {
  AddValue(command, "JOB", &flags->job, "FILE", "the job file (proto/job.proto)");
  AddValue(command, "--data", &flags->data, "PATH", "the data, instead of data.path of the job");
  AddValue(command, "--servers", &flags->servers, "N",
           "parameter servers, instead of cluster.servers");
  if (trains) {
    AddValue(command, "--workers", &flags->workers, "N", "workers, instead of cluster.workers");
  }
  // Both may be repeated, and take one value each time.
  AddValue(command, "--set", &flags->set, "FIELD=VALUE",
           "changes any field of the job: --set train.batch_size=512 (may be repeated)")
      ->allow_extra_args(false);
  AddValue(command, "--clear", &flags->clear, "FIELD",
           "takes a field out of the job, before any --set: --clear cache (may be repeated)")
      ->allow_extra_args(false);
  command->add_flag("--insecure", flags->insecure, "allows plain text beyond loopback");
  AddValue(command, "--bin-dir", &flags->bin_dir, "DIR",
           "the folder of thermocline-server and thermocline-worker");
  if (run_dir_help != nullptr) {
    AddValue(command, "--run-dir", &flags->run_dir, "DIR", run_dir_help);
  }
}

namespace {

void AddTrain(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = AddCommand(
      app, "train", "runs a job: servers and workers on this machine, or over several hosts",
      R"(Runs the job that the file JOB describes (a message Job of proto/job.proto in protobuf's
text format; deploy/jobs has examples) until the model is trained and evaluated. Ctrl-C stops it,
with a checkpoint of what is trained; again, at once.

The run directory gets the job as it was run (job.textproto), one log for each process,
metrics.jsonl, worker-N.json, server_stats.json, summary.json, and the checkpoints.
`thermocline stats --run-dir DIR` shows what the processes do and, after the run, their last stats.

--resume goes on with a job that has checkpoints, however it was stopped, at the sample after its
newest checkpoint. JOB may be left out. Another JOB, or flags, may change everything except what
defines the samples of a step or the contents of a row (batch size, seed, tables, optimizers,
features, how the data is read): servers, workers, passes, learning rate, cache and so on. The data
have to be the same: the sizes of the files, and the bytes at their ends, in their order. Files may
have been moved or renamed, and others may have been added behind them. --other-data goes on with
other data all the same.

--init-from begins a new run, from step 0 on, with the rows, optimizer state and dense parameters of
another run's checkpoint: other data, rates, seed, servers and workers. Its path is as for `eval`.

examples:
  thermocline train deploy/jobs/criteo_kaggle.textproto --data train.txt
  thermocline train job.textproto --data day_2.gz --init-from runs/day_1
  thermocline train deploy/jobs/quickstart.textproto --servers 4 --workers 2
  thermocline train job.textproto --set train.learning_rate.base=0.02 --set seed=7
  thermocline train --resume --run-dir runs/quickstart-20240101-120000 --servers 8
  thermocline train job.textproto --nodes 4 --listen 10.0.0.1:7070 --run-dir /shared/run)");
  AddJobFlags(command, flags.get(), true,
              "default: runs/NAME-TIME; without --resume it must hold no files");
  command->add_flag("--resume", flags->resume, "goes on with the run in --run-dir");
  AddValue(command, "--resume-from", &flags->resume_from, "NAME",
           "resumes from this checkpoint (name or path, or \"best\"), not the newest");
  command->add_flag("--restarted", flags->restarted,
                    "--resume by an engine: only reports a job that has ended, and goes on with "
                    "what is left of its limits");
  command->add_flag("--other-data", flags->other_data,
                    "resumes although the data are not those of the checkpoint");
  command->add_flag("--or-begin", flags->or_begin,
                    "with --resume or --restarted, of an engine's first submission: begins the job "
                    "where its run directory has no job file yet");
  AddValue(command, "--init-from", &flags->init_from, "PATH",
           "begins with the model of another run's checkpoint: its path, or the run's");
  AddValue(command, "--nodes", &flags->nodes, "N",
           "runs the job over N hosts, on each of which `thermocline node` runs")
      ->check(WholeNumber(1, 1000));
  AddValue(command, "--listen", &flags->listen, "HOST:PORT",
           "where nodes find this controller; with --nodes");
  OnCommand(command, action, RunTrain, flags);
}

void AddEval(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = AddCommand(
      app, "eval", "scores rows with a checkpoint",
      R"(Starts the job's servers with the rows of a checkpoint, and one worker that scores all rows of
--data or, without --data, the held-out rows of the job's data. Trains nothing.

PATH is a checkpoint's folder, such as RUN_DIR/step-999; or a run directory:
its newest whole checkpoint; or RUN_DIR/best: the checkpoint of the best evaluation. JOB may be left
out if the checkpoint lies in a run directory, which has the job. The job's model must be the
checkpoint's: if not, the error names the difference, and the exit code is 2.

examples:
  thermocline eval --checkpoint runs/r
  thermocline eval job.textproto --checkpoint PATH --data day_23.gz --servers 4 --json)");
  AddValue(command, "--checkpoint", &flags->checkpoint, "PATH",
           "the checkpoint's folder, or a run directory")
      ->required();
  AddJobFlags(command, flags.get(), false,
              "default: one that is removed at the end; must hold no files");
  command->add_flag("--json", flags->json,
                    "prints the result as JSON; progress goes to standard error");
  OnCommand(command, action, RunEval, flags);
}

void AddPredict(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<PredictFlags>();
  CLI::App* command = AddCommand(
      app, "predict", "writes a score for each row of a file",
      R"(Scores all rows of the data with a checkpoint, without servers, in bounded memory and in the order
of the rows. The scores have the same bits as those of `eval`. The data need no labels: the column,
or npy file, of labels may be missing.

PATH is a checkpoint as for `eval`. It holds its job, which says how the data are read; --job names
another job file with the same model.

The end of OUT says how the scores are written. They are probabilities, or logits with --logits.
  .csv   a header; then row (counted from 0), label (where the data have one), the columns of
         --column, score
  .npy   float32, one for each row; NaN for a malformed one
  .parquet  the columns of .csv, where the build has Arrow
OUT appears when all is written. A malformed line is an error, which names it; up to --max-bad-lines
of them are left out: their numbers are missing in `row`.

examples:
  thermocline predict --checkpoint runs/r --data day_24.gz --out scores.csv
  thermocline predict --checkpoint runs/r/best --data today.csv --column user,item --out s.csv)");
  AddValue(command, "--checkpoint", &flags->checkpoint, "PATH",
           "the checkpoint's folder, or a run directory")
      ->required();
  AddValue(command, "--data", &flags->data, "PATH", "the rows to score")->required();
  AddValue(command, "--out", &flags->out, "OUT", "the file to write")->required();
  AddValue(command, "--job", &flags->job, "FILE", "a job file, instead of the checkpoint's job");
  AddValue(command, "--column", &flags->columns, "NAMES",
           "columns of the data that are written beside the scores: user,item")
      ->delimiter(',')
      ->allow_extra_args(false);
  AddValue(command, "--max-bad-lines", &flags->max_bad_lines, "N",
           "malformed lines that may be left out, instead of data.max_bad_lines");
  AddValue(command, "--memory", &flags->memory, "SIZE",
           "for rows of the checkpoint and batches that wait for them; default 1GiB");
  command->add_flag("--logits", flags->logits, "writes logits, not probabilities");
  command->add_flag("--force", flags->force, "replaces an existing file OUT");
  AddValue(command, "--set", &flags->set, "FIELD=VALUE",
           "changes a field of the job: --set device=CPU (may be repeated)")
      ->allow_extra_args(false);
  AddValue(command, "--bin-dir", &flags->bin_dir, "DIR", "the folder of thermocline-predict");
  OnCommand(command, action, RunPredict, flags);
}

void AddStats(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<StatsFlags>();
  CLI::App* command = AddCommand(
      app, "stats", "shows what servers and workers are doing",
      R"(Asks the servers at the addresses, or the servers and workers of a run directory; by default those
of the latest run under runs/. Shows rows and memory, keys pulled and pushed, latencies, held pulls,
duplicates and staleness. If the run has ended, shows its result and the last stats of its
processes. Exit code 1 if a server does not answer, or the run ended without a result.

examples:
  thermocline stats 127.0.0.1:40001 127.0.0.1:40002
  thermocline stats --run-dir runs/quickstart-20240101-120000 --watch
  thermocline stats --json | jq '.servers[].stats.tables[].rows')");
  AddValue(command, "ADDRESS", &flags->addresses, "HOST:PORT", "servers to ask");
  AddValue(command, "--run-dir", &flags->run_dir, "DIR", "the servers and workers of this run");
  command->add_flag("--watch", flags->watch, "repeats, until the run ends or Ctrl-C");
  AddValue(command, "--interval", &flags->interval_s, "SECONDS",
           "the pause between repetitions of --watch; default 1")
      ->transform(WholeNumber(1, 3600));
  command->add_flag("--json", flags->json,
                    "prints JSON (proto/parameter_server.proto); one line each time with --watch");
  AddValue(command, "--tls-certificate", &flags->tls_certificate, "FILE", "to show (PEM)");
  AddValue(command, "--tls-private-key", &flags->tls_private_key, "FILE", "its key (PEM)");
  AddValue(command, "--tls-ca", &flags->tls_ca, "FILE",
           "the authority that signed the servers' certificates (PEM)");
  OnCommand(command, action, RunStats, flags);
}

constexpr char kCheckpointPath[] =
    R"(PATH is a checkpoint directory, a run directory, or one checkpoint (DIRECTORY/step-999);
DIRECTORY/best is the checkpoint of the best evaluation (`evaluate` in the job).)";

void AddCheckpoint(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<CheckpointFlags>();
  CLI::App* command =
      AddCommand(app, "checkpoint", "lists, verifies, exports and makes checkpoints",
                 absl::StrCat(kCheckpointPath, R"(
Exit code 1 if a checkpoint is not whole.

examples:
  thermocline checkpoint list runs/quickstart-20240101-120000
  thermocline checkpoint verify runs/quickstart-20240101-120000/checkpoints
  thermocline checkpoint export runs/kaggle/step-999 m.safetensors
  thermocline checkpoint now --run-dir runs/quickstart-20240101-120000)"));
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* summary, int (*run)(const CheckpointFlags&)) {
    CLI::App* subcommand = AddCommand(command, name, summary, kCheckpointPath);
    OnCommand(subcommand, action, run, flags);
    return subcommand;
  };
  const auto add_path = [&](CLI::App* subcommand) {
    AddValue(subcommand, "PATH", &flags->path, "DIR", "which checkpoints; see below")->required();
  };
  CLI::App* list = add("list", "shows the checkpoints, oldest first, from manifests and file sizes",
                       ListCheckpoints);
  add_path(list);
  list->add_flag("--json", flags->json, "prints JSON");

  add_path(add("verify",
               "reads every byte: damaged files, model digest, whether --resume could go on",
               VerifyCheckpoints));

  CLI::App* to_file =
      add("export", "verifies one checkpoint and writes it as safetensors", ExportOneCheckpoint);
  add_path(to_file);
  AddValue(to_file, "OUT", &flags->out, "FILE", "the file to write: model.safetensors")->required();
  to_file->add_flag("--optimizer-state", flags->optimizer_state, "also the optimizers' state");
  to_file->footer(absl::StrCat(kCheckpointPath, R"(
Of several checkpoints the newest is exported. deploy/python/thermocline_torch.py reads the file.)"));

  CLI::App* now =
      add("now", "makes a running job write a checkpoint, and prints its path", CheckpointNow);
  AddValue(now, "--run-dir", &flags->run_dir, "DIR", "the run directory of the job")->required();
  AddValue(now, "--timeout", &flags->timeout_s, "SECONDS", "how long to wait; default 600")
      ->transform(WholeNumber(1, 24 * 3600));
  now->footer("");
}

// "thermocline checkpoint list"
std::string FullName(const CLI::App* app) {
  const std::string name = app->get_name();
  return app->get_parent() == nullptr ? name : absl::StrCat(FullName(app->get_parent()), " ", name);
}

std::string HelpPage(const CLI::App* app) {
  return app->get_formatter()->make_help(app, FullName(app), CLI::AppFormatMode::Normal);
}

// "; see thermocline help checkpoint list"
std::string SeeHelp(const CLI::App* app) {
  const std::string program = "thermocline";
  return absl::StrCat("; see ", program, " help", FullName(app).substr(program.size()));
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

std::string UnknownCommand(const CLI::App& app, const std::string& name) {
  return absl::StrCat("unknown command '", name, "'", DidYouMean(name, CommandNames(app)),
                      SeeHelp(&app));
}

int PrintHelp(const CLI::App* app, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto named =
        app->get_subcommands([&](const CLI::App* command) { return command->get_name() == name; });
    if (named.empty()) return Complain(UnknownCommand(*app, name), kExitUsage);
    app = named.front();
  }
  std::fputs(HelpPage(app).c_str(), stdout);
  return kExitDone;
}

void AddHelp(CLI::App* app, Action* action) {
  const auto names = std::make_shared<std::vector<std::string>>();
  CLI::App* command = AddCommand(app, "help", "shows how to use a command", "");
  AddValue(command, "COMMAND", names.get(), "NAME", "the command: checkpoint list");
  command->callback([=] { *action = [=] { return PrintHelp(app, *names); }; });
}

int PrintVersion() {
  std::printf("thermocline %s\n", kVersion);
  return kExitDone;
}

// What is wrong with an argument that CLI11 found no use for.
std::string DescribeExtra(const CLI::App& app, const std::string& extra) {
  if (!absl::StartsWith(extra, "-")) {
    if (!app.get_subcommands({}).empty()) return UnknownCommand(app, extra);
    return absl::StrCat("unexpected argument '", extra, "'", SeeHelp(&app));
  }
  const std::string flag = extra.substr(0, extra.find('='));
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return absl::StrCat("unknown flag ", flag, DidYouMean(flag, flags), SeeHelp(&app));
}

// CLI11's error about `command` in our words.
std::string Describe(const CLI::App& command, const CLI::ParseError& error) {
  std::string what = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    what = absl::StrReplaceAll(what,
                               {{": 1 required ", " needs a value: "},
                                {" missing", ""},
                                {": At Most 1 required but received ", " takes one value, not "}});
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr &&
             !command.get_subcommands({}).empty()) {
    what = absl::StrCat("a command is missing: ", absl::StrJoin(CommandNames(command), ", "));
  }
  return what + SeeHelp(&command);
}

// Prints the page that the command line asks for, or what is wrong with it. Returns the exit code.
int Refuse(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App* command = &root;
  std::string unknown;  // An unknown argument may be why others are missing: it goes first.
  bool asks_for_help = false;
  while (true) {
    asks_for_help |= command->get_help_ptr()->count() > 0;
    for (const std::string& extra : command->remaining()) {
      if (unknown.empty() && extra != "--") unknown = DescribeExtra(*command, extra);
    }
    const auto parsed = command->get_subcommands();
    if (parsed.empty()) break;
    command = parsed.front();
  }
  if (asks_for_help) return PrintHelp(command, {});
  if (dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr) return PrintVersion();
  return Complain(unknown.empty() ? Describe(*command, error) : unknown, kExitUsage);
}

// The arguments in a form that CLI11 understands as we do: `--run_dir=x` becomes `--run-dir=x`;
// `--run-dir=` becomes two arguments, because CLI11 would take the next argument for the value; and
// a `--` goes where no flag-like argument follows, because CLI11 ends a list of addresses there.
std::vector<std::string> Normalize(const std::vector<std::string>& arguments) {
  std::vector<std::string> normal;
  for (auto at = arguments.begin(); at != arguments.end(); ++at) {
    if (*at == "--") {
      const bool is_needed = std::any_of(at + 1, arguments.end(), [](const std::string& argument) {
        return absl::StartsWith(argument, "-");
      });
      normal.insert(normal.end(), at + (is_needed ? 0 : 1), arguments.end());
      break;
    }
    normal.push_back(*at);
    if (!absl::StartsWith(*at, "--")) continue;
    const std::pair<std::string, std::string> parts = absl::StrSplit(*at, absl::MaxSplits('=', 1));
    normal.back() = absl::StrReplaceAll(parts.first, {{"_", "-"}});
    if (!parts.second.empty()) {
      absl::StrAppend(&normal.back(), "=", parts.second);
    } else if (absl::EndsWith(*at, "=")) {
      normal.emplace_back();
    }
  }
  return normal;
}

}  // namespace

int RunCommandLine(const std::vector<std::string>& arguments) {
  // The benchmark parses its own flags.
  if (arguments.size() >= 2 && arguments[0] == "bench" &&
      (arguments[1] == "pull" || arguments[1] == "push")) {
    return RunBenchProgram({arguments.begin() + 1, arguments.end()});
  }
  Action action;
  CLI::App app("thermocline trains click-through-rate models on parameter servers.", "thermocline");
  app.option_defaults()->group("flags");
  app.set_help_flag("-h,--help", "shows this page");
  app.add_subcommand("version", "")->group("")->callback([&] { action = PrintVersion; });
  app.set_version_flag("--version", kVersion, "prints the version");
  app.require_subcommand(1);
  app.get_formatter()->label("Usage", "usage");
  app.get_formatter()->label("OPTIONS", "FLAGS");
  app.get_formatter()->label("Positionals", "arguments");
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  AddTrain(&app, &action);
  AddNode(&app, &action);
  AddLogs(&app, &action);
  AddEval(&app, &action);
  AddPredict(&app, &action);
  AddGenerate(&app, &action);
  AddInspect(&app, &action);
  AddPlan(&app, &action);
  AddCalibrate(&app, &action);
  AddSubmit(&app, &action);
  AddJobs(&app, &action);
  AddStats(&app, &action);
  AddCheckpoint(&app, &action);
  AddCertificates(&app, &action);
  AddBench(&app, &action);
  AddHelp(&app, &action);
  app.footer(
      "`thermocline help COMMAND` shows the page of a command.\n"
      "exit codes: 0 done, 1 the job failed or was stopped, 2 bad usage or job file");
  if (arguments.empty()) {
    std::fputs(HelpPage(&app).c_str(), stderr);
    return kExitUsage;
  }
  std::vector<std::string> normal = Normalize(arguments);
  std::reverse(normal.begin(), normal.end());  // as CLI11 wants them
  try {
    app.parse(std::move(normal));
  } catch (const CLI::ParseError& error) {
    return Refuse(app, error);
  }
  return action();
}

}  // namespace thermocline
