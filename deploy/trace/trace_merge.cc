#include "deploy/trace/trace_merge.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/disk/disk.h"
#include "common/trace/process_trace.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// A file that is whole ends so. Each line between its third and this has one event.
constexpr absl::string_view kLastLine = "]}";
// "otherData" comes first, and is no longer.
constexpr size_t kHeadBytes = 4096;
constexpr char kIsDamaged[] = " (its file is damaged)";

struct ProcessFile {
  std::string role;
  uint32_t index = 0;

  std::string Name() const { return absl::StrCat(role, " ", index); }
};

// In the order in which they are shown.
std::vector<ProcessFile> FilesOf(const TraceMergeOptions& options) {
  std::vector<ProcessFile> files;
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    files.push_back({"worker", rank});
    if (options.has_scripts) files.push_back({"script", rank});
  }
  for (uint32_t index = 0; index < options.servers; ++index) files.push_back({"server", index});
  return files;
}

std::string PathOf(const TraceMergeOptions& options, const ProcessFile& file) {
  return absl::StrCat(options.run_dir, "/", kTraceFolder, "/",
                      TraceFileName(file.role, file.index));
}

// What the file says about its process; nullopt: it is damaged.
std::optional<Json> AboutOf(const Json& trace) {
  if (!trace.is_object() || !trace.contains("otherData")) return std::nullopt;
  const Json& about = trace["otherData"];
  for (const char* number :
       {"generation", "first_step", "last_step", "base_ns", "pid", "events", "dropped"}) {
    if (!about.is_object() || !about.contains(number) || !about[number].is_number_integer()) {
      return std::nullopt;
    }
  }
  for (const char* text : {"process", "host", "clock"}) {
    if (!about.contains(text) || !about[text].is_string()) return std::nullopt;
  }
  return about;
}

// Whether the file is of this launch, and of these steps.
bool IsOfThisTrace(const TraceMergeOptions& options, const Json& about) {
  return about["generation"].get<uint64_t>() >= options.first_generation &&
         about["first_step"].get<uint64_t>() == options.steps.first_step() &&
         about["last_step"].get<uint64_t>() == options.steps.last_step();
}

// "otherData" alone: the second line of the file.
std::optional<Json> ReadAbout(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string head(kHeadBytes, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  const std::vector<absl::string_view> lines = absl::StrSplit(head, '\n');
  if (lines.size() < 3) return std::nullopt;
  const std::string text = absl::StrCat("{", absl::StripSuffix(lines[1], ","), "}");
  return AboutOf(Json::parse(text, nullptr, /*allow_exceptions=*/false));
}

bool IsWhole(const std::string& path) {
  const std::string end = absl::StrCat("\n", kLastLine, "\n");
  std::string last(end.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.seekg(-static_cast<std::streamoff>(last.size()), std::ios::end);
  file.read(last.data(), static_cast<std::streamsize>(last.size()));
  return file && last == end;
}

int64_t NanosOf(const Json& micros) { return std::llround(micros.get<double>() * 1000); }

// A process whose events are in the merged trace.
struct Part {
  int64_t pid = 0;
  std::string name;
  Json about;
  std::string path;
  std::optional<ClockOffset> clock;  // Nullopt: it is not known.
  int64_t shift_ns = 0;              // From the process's times to those of the merged trace.
  bool is_written = false;

  int64_t offset_ns() const { return clock.has_value() ? clock->offset_ns : 0; }
};

class Merge {
 public:
  Merge(const TraceMergeOptions& options, const ClockOffsets& clocks)
      : options_(options), clocks_(clocks) {}

  absl::StatusOr<MergedTrace> Run();

 private:
  void LookAt(const ProcessFile& file);
  Part PartOf(const ProcessFile& file, const Json& about) const;
  absl::Status Write(const std::string& path);
  void WritePart(Part* part, std::ofstream* out);
  bool WriteEvents(const Part& part, std::ofstream* out);
  bool WriteEvent(const Part& part, Json event, std::ofstream* out);
  void WriteMetadata(const Part& part, const char* name, const Json& arguments, std::ofstream* out);
  void WriteLine(const Json& event, std::ofstream* out);
  Json OtherData() const;

  const TraceMergeOptions& options_;
  const ClockOffsets& clocks_;
  const std::string own_clock_ = ClockName();
  MergedTrace merged_;
  std::vector<Part> parts_;
  int64_t begin_ns_ = INT64_MAX;  // The begin of the trace on the controller's clock.
  uint64_t bytes_ = 0;
  bool is_first_ = true;
};

// The clock of a process at the begin of its trace.
Part Merge::PartOf(const ProcessFile& file, const Json& about) const {
  Part part;
  part.name = file.Name();
  part.path = PathOf(options_, file);
  part.about = about;
  const std::string clock = about["clock"].get<std::string>();
  const int64_t base_ns = about["base_ns"].get<int64_t>();
  ClockOffset offset;
  // A script runs on the host of its worker.
  const std::string polled =
      file.role == "script" ? absl::StrCat("worker ", file.index) : part.name;
  if (!clock.empty() && clock == own_clock_) {
    part.clock = ClockOffset();
  } else if (clocks_.Find(polled, base_ns, &offset)) {
    clocks_.Find(polled, base_ns - offset.offset_ns, &offset);
    part.clock = offset;
  }
  return part;
}

void Merge::LookAt(const ProcessFile& file) {
  const std::string path = PathOf(options_, file);
  const std::optional<Json> about = ReadAbout(path);
  const bool is_there = access(path.c_str(), F_OK) == 0;
  if (is_there && (!about.has_value() || !IsWhole(path))) {
    merged_.missing.push_back(absl::StrCat(file.Name(), kIsDamaged));
  } else if (!about.has_value() || !IsOfThisTrace(options_, *about)) {
    merged_.missing.push_back(file.Name());
  } else {
    Part part = PartOf(file, *about);
    part.pid = static_cast<int64_t>(parts_.size()) + 1;
    if (part.about["events"].get<uint64_t>() > 0) {
      begin_ns_ = std::min(begin_ns_, part.about["base_ns"].get<int64_t>() - part.offset_ns());
    }
    parts_.push_back(std::move(part));
  }
}

absl::StatusOr<MergedTrace> Merge::Run() {
  for (const ProcessFile& file : FilesOf(options_)) LookAt(file);
  if (begin_ns_ == INT64_MAX) return std::move(merged_);  // Nothing was recorded.
  const std::string path = absl::StrCat(options_.run_dir, "/trace.json");
  RETURN_IF_ERROR(Write(path));
  merged_.path = path;
  return std::move(merged_);
}

absl::Status Merge::Write(const std::string& path) {
  const std::string temporary = path + ".tmp";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out << "{\"displayTimeUnit\":\"ms\",\n\"traceEvents\":[";
  for (Part& part : parts_) {
    part.shift_ns = part.about["base_ns"].get<int64_t>() - part.offset_ns() - begin_ns_;
    WritePart(&part, &out);
  }
  out << "\n],\n\"otherData\":" << OtherData().dump() << "}\n";
  out.close();
  if (out && std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  unlink(temporary.c_str());
  return absl::UnavailableError(absl::StrCat("can't write ", path, ": ", std::strerror(error),
                                             DescribeFullDisk(path, error)));
}

void Merge::WritePart(Part* part, std::ofstream* out) {
  if (bytes_ > options_.max_bytes) {
    merged_.missing.push_back(absl::StrCat(part->name, " (the trace has more than ",
                                           options_.max_bytes, " bytes without it)"));
    return;
  }
  part->is_written = true;
  const uint64_t generation = part->about["generation"].get<uint64_t>();
  std::string title = part->name;
  if (generation > 1) absl::StrAppend(&title, " (generation ", generation, ")");
  WriteMetadata(*part, "process_name", {{"name", title}}, out);
  WriteMetadata(*part, "process_labels", {{"labels", part->about["host"]}}, out);
  WriteMetadata(*part, "process_sort_index", {{"sort_index", part->pid}}, out);
  if (!WriteEvents(*part, out)) {
    merged_.warnings.push_back(part->name + " has events that can't be read");
  }
  const uint64_t dropped = part->about["dropped"].get<uint64_t>();
  if (dropped > 0) {
    merged_.warnings.push_back(absl::StrCat(part->name, " had no room for ", dropped, " events"));
  }
  if (!part->clock.has_value()) {
    merged_.warnings.push_back(absl::StrCat("the clock of ", part->name, " is not known"));
  }
}

// False: some can't be read.
bool Merge::WriteEvents(const Part& part, std::ofstream* out) {
  std::ifstream file(part.path, std::ios::binary);
  std::string line;
  for (int head = 0; head < 3; ++head) std::getline(file, line);
  bool all = true;
  while (std::getline(file, line) && line != kLastLine) {
    Json event = Json::parse(absl::StripSuffix(line, ","), nullptr, /*allow_exceptions=*/false);
    all = WriteEvent(part, std::move(event), out) && all;
  }
  return all;
}

// False: it is no event.
bool Merge::WriteEvent(const Part& part, Json event, std::ofstream* out) {
  if (!event.is_object() || !event.contains("ph") || !event.contains("name")) return false;
  event["pid"] = part.pid;
  if (event["ph"] == "M") {
    if (event["name"] == "process_name") return true;  // Written above.
    WriteLine(event, out);
    return true;
  }
  if (!event.contains("ts") || !event["ts"].is_number()) return false;
  event["ts"] = static_cast<double>(NanosOf(event["ts"]) + part.shift_ns) / 1000;
  merged_.events += event["ph"] == "e" ? 0 : 1;
  WriteLine(event, out);
  return true;
}

void Merge::WriteMetadata(const Part& part, const char* name, const Json& arguments,
                          std::ofstream* out) {
  WriteLine({{"ph", "M"}, {"name", name}, {"pid", part.pid}, {"tid", 0}, {"args", arguments}}, out);
}

void Merge::WriteLine(const Json& event, std::ofstream* out) {
  const std::string line =
      event.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  *out << (std::exchange(is_first_, false) ? "\n" : ",\n") << line;
  bytes_ += line.size() + 2;
}

Json Merge::OtherData() const {
  Json processes = Json::array();
  for (const Part& part : parts_) {
    if (!part.is_written) continue;
    Json process = {{"name", part.name},
                    {"pid", part.pid},
                    {"generation", part.about["generation"]},
                    {"host", part.about["host"]},
                    {"process_id", part.about["pid"]},
                    {"dropped", part.about["dropped"]}};
    process["clock_error_us"] =
        part.clock.has_value() ? Json(static_cast<double>(part.clock->error_ns) / 1000) : Json();
    processes.push_back(std::move(process));
  }
  return {{"job", options_.job},
          {"version", options_.version},
          {"first_step", options_.steps.first_step()},
          {"last_step", options_.steps.last_step()},
          {"begin_monotonic_ns", begin_ns_},
          {"processes", std::move(processes)},
          {"missing", merged_.missing}};
}

}  // namespace

absl::StatusOr<Trace> ParseTrace(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  uint64_t first = 0, last = 0;
  const auto is_number = [](const std::string& part, uint64_t* value) {
    return !part.empty() && part.find_first_not_of("0123456789") == std::string::npos &&
           absl::SimpleAtoi(part, value);
  };
  if (parts.size() != 2 || !is_number(parts[0], &first) || !is_number(parts[1], &last)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace is '", text, "'; it takes two steps, FIRST:LAST, such as 100:104"));
  }
  Trace trace;
  trace.set_first_step(first);
  trace.set_last_step(last);
  RETURN_IF_ERROR(CheckTrace(trace));
  return trace;
}

absl::Status CheckTrace(const Trace& trace) {
  const std::string steps = absl::StrCat(trace.first_step(), ":", trace.last_step());
  if (trace.first_step() > trace.last_step()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace ", steps, " ends before it begins: it takes FIRST:LAST"));
  }
  if (trace.last_step() > static_cast<uint64_t>(kLastStep.value())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace ", steps, ": no job has a step ", trace.last_step()));
  }
  const uint64_t num_steps = trace.last_step() - trace.first_step() + 1;
  if (num_steps <= kMaxTraceSteps) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--trace ", steps, " has ", num_steps, " steps; at most ", kMaxTraceSteps, " are traced"));
}

bool HasAllTraces(const TraceMergeOptions& options) {
  for (const ProcessFile& file : FilesOf(options)) {
    const std::optional<Json> about = ReadAbout(PathOf(options, file));
    if (!about.has_value() || !IsOfThisTrace(options, *about)) return false;
  }
  return true;
}

absl::StatusOr<MergedTrace> MergeTraces(const TraceMergeOptions& options,
                                        const ClockOffsets& clocks) {
  return Merge(options, clocks).Run();
}

std::string DescribeTrace(const TraceMergeOptions& options,
                          const absl::StatusOr<MergedTrace>& merged) {
  if (!merged.ok()) return absl::StrCat("no trace: ", merged.status().message());
  std::string text =
      merged->path.empty()
          ? absl::StrCat("trace: nothing was recorded of the steps ", options.steps.first_step(),
                         " to ", options.steps.last_step())
          : absl::StrCat("trace: ", merged->path, " (open it in https://ui.perfetto.dev)");
  if (!merged->missing.empty()) {
    absl::StrAppend(&text, "; it lacks ", absl::StrJoin(merged->missing, ", "));
  }
  for (const std::string& warning : merged->warnings) absl::StrAppend(&text, "; ", warning);
  return text;
}

}  // namespace thermocline
