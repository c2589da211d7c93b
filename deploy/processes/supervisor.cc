#include "deploy/processes/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "common/process/child_process.h"

namespace thermocline {
namespace {

constexpr size_t kReadBytes = 64 << 10;
// The middle of longer last words is left out, since a message begins with a place, such as a path,
// and ends with the reason.
constexpr size_t kMostLastWords = 300;
// So much is shown of what a script wrote before it ended.
constexpr ptrdiff_t kMostScriptLines = 40;

// Takes the time off a line of a log (common/base/process.h). Returns whether it begins with one.
bool ConsumeTime(std::string* line) {
  const size_t space = line->find(' ');
  absl::Time time;
  if (space == std::string::npos ||
      !absl::ParseTime(absl::RFC3339_full, line->substr(0, space), &time, nullptr)) {
    return false;
  }
  line->erase(0, space + 1);
  return true;
}

// What a worker says last whose script failed: the last line with a time and all behind it, since a
// traceback has many lines. A script that ended before it could tell the worker why, such as for
// want of a module, has written that to the log: where there is one line only, what stands before
// follows it. Where no line has a time, `log` is the end of a longer traceback.
std::string LastWordsOfScript(std::vector<std::string> log) {
  while (log.size() > 1 && log.back().empty()) log.pop_back();
  auto words = log.end() - 1;
  while (!ConsumeTime(&*words)) {
    if (words == log.begin()) {
      const auto shown = log.end() - std::min(kMostScriptLines, log.end() - log.begin());
      return absl::StrCat("failed: ABORTED: the script failed; the log ends with:\n",
                          absl::StrJoin(shown, log.end(), "\n"));
    }
    --words;
  }
  const std::string said = absl::StrJoin(words, log.end(), "\n");
  if (log.end() - words > 1) return said;
  auto written = words;
  while (written != log.begin() && words - written < kMostScriptLines) {
    std::string line = *(written - 1);
    if (ConsumeTime(&line)) break;
    --written;
  }
  return written == words ? said : absl::StrCat(said, "\n", absl::StrJoin(written, words, "\n"));
}

// The last line of the log of a process that exited with an error, or LastWordsOfScript.
std::string LastWords(const ChildProcess& ended) {
  if (ended.exit_code().value_or(0) == 0) return "";
  const bool is_script = ended.exit_code() == kExitScript;
  std::vector<std::string> tail =
      LogTail(ended.log_path(), is_script ? INT_MAX : 1, ended.log_begin());
  if (tail.empty()) return "";
  if (is_script) return LastWordsOfScript(std::move(tail));
  ConsumeTime(&tail[0]);
  return tail[0];
}

// What a program says last that ends by an error of its own: "failed: CODE: message".
std::string Reason(const ChildProcess& ended, absl::string_view last_words) {
  const std::optional<int> code = ended.exit_code();
  if (!code.has_value() || code == kExitDone || code == kExitServerLost) return "";
  if (!absl::ConsumePrefix(&last_words, "failed: ")) return "";
  const size_t code_end = last_words.find(": ");
  return code_end == last_words.npos ? "" : std::string(last_words.substr(code_end + 2));
}

// One line. Of several lines it has the first and the last: a traceback ends with its exception.
std::string BothEnds(absl::string_view words) {
  constexpr absl::string_view kBetween = " ... ";
  const size_t first_end = words.find('\n');
  if (first_end != words.npos) {
    return absl::StrCat(BothEnds(words.substr(0, first_end)), kBetween,
                        BothEnds(words.substr(words.rfind('\n') + 1)));
  }
  if (words.size() <= kMostLastWords) return std::string(words);
  constexpr size_t kShown = (kMostLastWords - kBetween.size()) / 2;
  return ValidUtf8(
      absl::StrCat(words.substr(0, kShown), kBetween, words.substr(words.size() - kShown)));
}

// "was killed by signal 9 (Killed)", "exited with code 1 (the last line of its log)".
std::string HowItEnded(const ChildProcess& ended, absl::string_view last_words) {
  if (last_words.empty()) return ended.DescribeEnd();
  return absl::StrCat(ended.DescribeEnd(), " (", BothEnds(last_words), ")");
}

// The same for an error: with its last log lines, unless the reason is known.
std::string Report(const ChildProcess& ended, absl::string_view reason) {
  if (!reason.empty()) return absl::StrCat(ended.DescribeEnd(), "; its log: ", ended.log_path());
  const std::string tail = QuoteLogTail(ended.log_path(), ended.log_begin());
  if (tail.empty()) {
    return absl::StrCat(ended.DescribeEnd(), "; it wrote nothing to its log ", ended.log_path());
  }
  return absl::StrCat(ended.DescribeEnd(), "; last lines of ", ended.log_path(), ":", tail);
}

}  // namespace

Supervisor::~Supervisor() {
  for (const Reader& reader : readers_) close(reader.fd);
}

absl::Status Supervisor::Start(const ProcessId& id, ChildProcessOptions options) {
  options.ignores_term = stop_signal_ != SIGTERM;
  ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(options));
  members_.push_back({id, std::move(process)});
  return absl::OkStatus();
}

void Supervisor::ReadFrom(int fd, std::function<void(absl::string_view)> reader) {
  readers_.push_back({fd, std::move(reader)});
}

std::vector<Supervisor::Ended> Supervisor::TakeEnded() {
  std::vector<Ended> ended;
  std::deque<Member> running;
  for (Member& member : members_) member.process.HasEnded();
  for (Member& member : members_) {
    if (!member.process.ended()) {
      running.push_back({member.id, std::move(member.process)});
      continue;
    }
    const ChildProcess& process = member.process;
    const std::string last_words = LastWords(process), reason = Reason(process, last_words);
    ended.push_back({member.id,
                     {process.exit_code(), HowItEnded(process, last_words), Report(process, reason),
                      reason, process.lacked_memory()}});
  }
  members_ = std::move(running);
  return ended;
}

void Supervisor::Signal(const ProcessId& id, int number) {
  for (Member& member : members_) {
    if (member.id == id) member.process.Signal(number);
  }
}

void Supervisor::Stop(ProcessRole role, absl::Duration grace) {
  std::vector<ChildProcess> stopping;
  std::deque<Member> others;
  for (Member& member : members_) {
    if (member.id.role == role) {
      stopping.push_back(std::move(member.process));
    } else {
      others.push_back({member.id, std::move(member.process)});
    }
  }
  members_ = std::move(others);
  const auto all_ended = [&stopping] {
    for (ChildProcess& process : stopping) process.HasEnded();
    return std::all_of(stopping.begin(), stopping.end(),
                       [](const ChildProcess& process) { return process.ended(); });
  };
  const int requests = signals_.stop_requests();
  const Stopwatch watch;
  bool done = all_ended();
  for (ChildProcess& process : stopping) process.Signal(stop_signal_);
  while (!done && watch.Elapsed() < grace && signals_.stop_requests() == requests) {
    Poll(std::min(absl::Milliseconds(50), grace - watch.Elapsed()));
    done = all_ended();
  }
  for (ChildProcess& process : stopping) process.Signal(SIGKILL);
  while (!all_ended()) Poll(absl::Milliseconds(10));  // SIGKILL can't be refused
}

void Supervisor::Poll(absl::Duration timeout) {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
  for (const Reader& reader : readers_) fds.push_back({reader.fd, POLLIN, 0});
  const int64_t timeout_ms = std::max<int64_t>(absl::ToInt64Milliseconds(timeout), 1);
  if (poll(fds.data(), fds.size(), static_cast<int>(std::min<int64_t>(timeout_ms, 60000))) <= 0) {
    return;
  }
  signals_.Drain();
  for (size_t i = 1; i < fds.size(); ++i) {
    if (fds[i].revents != 0) Consume(&readers_[i - 1]);
  }
  readers_.erase(std::remove_if(readers_.begin(), readers_.end(),
                                [](const Reader& reader) { return reader.fd < 0; }),
                 readers_.end());
}

void Supervisor::Consume(Reader* reader) {
  std::string data(kReadBytes, '\0');
  const ssize_t got = read(reader->fd, data.data(), data.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got > 0) {
    reader->callback(absl::string_view(data.data(), static_cast<size_t>(got)));
    return;
  }
  close(reader->fd);
  reader->fd = -1;
  reader->callback("");
}

}  // namespace thermocline
