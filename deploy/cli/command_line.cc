#include "deploy/cli/command_line.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/process_limits.h"
#include "common/base/text.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"

namespace thermocline {

CLI::App* AddCommand(CLI::App* parent, const char* name, const char* summary,
                     const std::string& details) {
  CLI::App* command = parent->add_subcommand(name, summary)->group("commands")->footer(details);
  command->get_help_ptr()->group("flags");
  return command;
}

CLI::Validator WholeNumber(int64_t low, int64_t high) {
  return CLI::Validator(
      [=](std::string& text) {
        int64_t value = 0;
        if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
          return absl::StrCat("'", text, "' is not a whole number in [", low, ", ", high, "]");
        }
        text = absl::StrCat(value);
        return std::string();
      },
      "");
}

void AddJobFlags(CLI::App* command, JobFlags* flags, bool trains, const char* run_dir_help) {
  AddValue(command, "JOB", &flags->job, "FILE", "the job file (proto/job.proto)");
  AddValue(command, "--data", &flags->data, "PATH", "the data, instead of data.path of the job");
  AddValue(command, "--servers", &flags->servers, "N",
           "parameter servers, instead of cluster.servers; 0: the worker holds the rows itself");
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

void AddHttpFlag(CLI::App* command, JobFlags* flags) {
  AddValue(command, "--http", &flags->http, "HOST:PORT",
           "serves the job's page, and metrics for Prometheus, instead of cluster.http.address; "
           "port 0: a free one");
}

void AddTlsFlags(CLI::App* command, TlsFiles* files) {
  AddValue(command, "--tls-certificate", &files->certificate, "FILE", "PEM file");
  AddValue(command, "--tls-private-key", &files->private_key, "FILE", "PEM file");
  AddValue(command, "--tls-ca", &files->ca, "FILE", "PEM file");
}

namespace {

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
  for (const CLI::Option* option : app.get_options()) {
    if (flag != "--run-dir" || !option->get_positional()) continue;
    if (!absl::StartsWith(option->get_type_name(), "DIR")) continue;
    return absl::StrCat("unknown flag ", flag, "; the run directory stands alone: thermocline ",
                        app.get_name(), " DIR", SeeHelp(&app));
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
  AddStop(&app, &action);
  AddStats(&app, &action);
  AddReport(&app, &action);
  AddCheckpoint(&app, &action);
  AddCertificates(&app, &action);
  AddBench(&app, &action);
  AddHttpChild(&app, &action);
  AddHelp(&app, &action);
  app.footer(
      "`thermocline help COMMAND` shows the page of a command.\n"
      "exit codes: 0 done, 1 the job failed or was stopped, 2 bad usage or job file, 4 this "
      "machine has no thread left");
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
