#include "common/trace/process_trace.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/process.h"
#include "common/base/threads.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

// What began in the last step may end a little later, such as the answer to a push, or a
// checkpoint's files.
constexpr absl::Duration kLinger = absl::Milliseconds(500);

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = "";
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

int64_t BaseOf(const RecordedTrace& recorded) {
  int64_t base_ns = INT64_MAX;
  for (const TraceThread& thread : recorded.threads) {
    for (const TraceEvent& event : thread.events) base_ns = std::min(base_ns, event.begin_ns);
  }
  return base_ns == INT64_MAX ? MonotonicNanos() : base_ns;
}

size_t NumEvents(const RecordedTrace& recorded) {
  size_t events = 0;
  for (const TraceThread& thread : recorded.threads) events += thread.events.size();
  return events;
}

// Nanoseconds as microseconds, exactly.
std::string Micros(int64_t ns) { return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000); }

void AppendMetadata(const char* what, int tid, const Json& arguments, std::string* text) {
  Json event = {{"ph", "M"}, {"name", what}, {"pid", getpid()}, {"tid", tid}, {"args", arguments}};
  absl::StrAppend(text, event.dump(), ",\n");
}

// "push to server 1": calls to different processes have tracks of their own.
std::string TitleOf(const TraceEvent& event) {
  if (!event.overlaps || event.argument.name == nullptr) return event.name;
  return absl::StrCat(event.name, " ", event.argument.name, " ", event.argument.value);
}

std::string ArgumentsOf(const TraceEvent& event) {
  std::string text;
  if (event.step != kNoStep) absl::StrAppend(&text, "\"step\":", event.step.value());
  if (event.argument.name != nullptr) {
    absl::StrAppend(&text, text.empty() ? "" : ",", "\"", event.argument.name,
                    "\":", event.argument.value);
  }
  return absl::StrCat("{", text, "}");
}

void AppendEvent(const TraceEvent& event, int tid, int64_t base_ns, uint64_t* last_id,
                 std::string* text) {
  const std::string title = TitleOf(event);
  const std::string where = absl::StrCat("\"pid\":", getpid(), ",\"tid\":", tid);
  const std::string begin = Micros(event.begin_ns - base_ns);
  if (!event.overlaps) {
    absl::StrAppend(text, "{\"ph\":\"X\",\"name\":\"", title, "\",\"cat\":\"step\",", where,
                    ",\"ts\":", begin, ",\"dur\":", Micros(event.end_ns - event.begin_ns),
                    ",\"args\":", ArgumentsOf(event), "},\n");
    return;
  }
  const std::string call = absl::StrFormat(
      "\"name\":\"%s\",\"cat\":\"call\",\"id2\":{\"local\":\"0x%x\"},%s", title, ++*last_id, where);
  absl::StrAppend(text, "{\"ph\":\"b\",", call, ",\"ts\":", begin, ",\"args\":", ArgumentsOf(event),
                  "},\n{\"ph\":\"e\",", call, ",\"ts\":", Micros(event.end_ns - base_ns),
                  ",\"args\":{}},\n");
}

}  // namespace

std::string ClockName() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) return "";
  std::error_code none;  // An old kernel has no time namespaces.
  return absl::StrCat(boot, " ",
                      std::filesystem::read_symlink("/proc/self/ns/time", none).string());
}

std::string TraceFileName(const std::string& role, uint32_t index) {
  return absl::StrCat(role, "-", index, ".json");
}

std::string TraceFileText(const ProcessTraceOptions& options, const RecordedTrace& recorded) {
  const int64_t base_ns = BaseOf(recorded);
  const std::string process = absl::StrCat(options.role, " ", options.index);
  const Json about = {{"process", process},
                      {"role", options.role},
                      {"index", options.index},
                      {"job", options.job},
                      {"generation", options.generation},
                      {"first_step", options.first.value()},
                      {"last_step", options.last.value()},
                      {"host", HostName()},
                      {"pid", getpid()},
                      {"clock", ClockName()},
                      {"base_ns", base_ns},
                      {"events", NumEvents(recorded)},
                      {"dropped", recorded.dropped}};
  std::string text = absl::StrCat("{\"displayTimeUnit\":\"ms\",\n\"otherData\":",
                                  about.dump(-1, ' ', false, Json::error_handler_t::replace),
                                  ",\n\"traceEvents\":[\n");
  uint64_t last_id = 0;
  int tid = 0;
  for (const TraceThread& thread : recorded.threads) {
    ++tid;
    AppendMetadata("thread_name", tid, {{"name", thread.name}}, &text);
    AppendMetadata("thread_sort_index", tid, {{"sort_index", tid}}, &text);
    for (const TraceEvent& event : thread.events) {
      AppendEvent(event, tid, base_ns, &last_id, &text);
    }
  }
  const Json name = {{"ph", "M"},
                     {"name", "process_name"},
                     {"pid", getpid()},
                     {"tid", 0},
                     {"args", {{"name", process}}}};
  absl::StrAppend(&text, name.dump(), "\n]}\n");
  return text;
}

absl::Status WriteTraceFile(const ProcessTraceOptions& options, const RecordedTrace& recorded) {
  const std::string path =
      absl::StrCat(options.directory, "/", TraceFileName(options.role, options.index));
  std::error_code ignored;  // Where there is no folder, the file can't be made.
  std::filesystem::create_directories(options.directory, ignored);
  // Processes of two generations may write at once, where one is taken for dead.
  const std::string temporary = absl::StrCat(path, ".", options.generation, ".", getpid(), ".tmp");
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << TraceFileText(options, recorded);
  file.close();
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  unlink(temporary.c_str());
  return absl::UnavailableError(absl::StrCat("can't write ", path, ": ", std::strerror(error)));
}

ProcessTrace::ProcessTrace(ProcessTraceOptions options) : options_(std::move(options)) {
  StartTracing(options_.first, options_.last);
  thread_ = MakeThread([this] { Run(); });
}

ProcessTrace::~ProcessTrace() {
  {
    absl::MutexLock lock(&mutex_);
    ends_ = true;
  }
  EndTraceOf(options_.last);
  thread_.join();
}

void ProcessTrace::Run() {
  AwaitTraceEnd();
  {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&ends_), kLinger);
  }
  const absl::Status written = WriteTraceFile(options_, StopTracing());
  if (!written.ok()) LogLine(absl::StrCat("no trace: ", written.message()));
}

}  // namespace thermocline
