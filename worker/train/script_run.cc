#include "worker/train/script_run.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/base/timing.h"
#include "common/job/job_data.h"
#include "worker/session/retry_policy.h"

namespace thermocline {
namespace {

// A script imports its libraries before it connects, maybe from a slow disk.
constexpr absl::Duration kConnectPatience = absl::Minutes(5);
// So long a script may import its libraries and compile its model before the job counts as stalled.
constexpr absl::Duration kStartPatience = absl::Minutes(30);
// After a script needs nothing more, it closes files, and maybe writes its own model somewhere.
constexpr absl::Duration kEndPatience = absl::Minutes(10);
// Between the end of a script's socket and that of its process.
constexpr absl::Duration kExitPatience = absl::Seconds(5);
constexpr absl::Duration kTick = absl::Seconds(1);
// The log names a wait for the script that is this long, and again after twice the time.
constexpr absl::Duration kSlowAnswer = absl::Seconds(10);

// A state is pushed with one step, and as rows takes a third more than its bytes. A server must
// have room for it among the pushes that wait.
uint64_t MaxStateBytes(const Job& job) {
  const absl::StatusOr<uint64_t> room = ParseByteSize(job.cluster().max_pending_size());
  CHECK(room.ok());  // LoadJob checked it
  return *room / 2;
}

// What the script may know of the job. deploy/python/thermocline/_run.py reads it.
std::string DescribeJob(const Job& job, const JobTables& tables, Step start_step,
                        const ScriptTrace& trace) {
  std::set<int> dims;
  for (const TableLayout& table : tables.sparse) dims.insert(table.dim);
  nlohmann::ordered_json json = {{"name", job.name()},
                                 {"seed", job.seed()},
                                 {"rank", 0},
                                 {"workers", job.cluster().workers()},
                                 {"batch_size", job.train().batch_size()},
                                 {"passes", job.train().passes()},
                                 {"max_steps", job.train().max_steps()},
                                 {"start_step", start_step.value()},
                                 {"dims", dims},
                                 {"loads", start_step > Step(0) || job.has_init()},
                                 {"max_state_bytes", MaxStateBytes(job)},
                                 {"evaluates", job.has_evaluate()},
                                 {"own_metric", job.evaluate().own_metric()}};
  if (job.has_trace() && !trace.directory.empty() &&
      start_step <= Step(static_cast<int64_t>(job.trace().last_step()))) {
    json["trace"] = {{"job", job.name()},
                     {"rank", 0},
                     {"directory", trace.directory},
                     {"generation", trace.generation},
                     {"first_step", job.trace().first_step()},
                     {"last_step", job.trace().last_step()}};
  }
  json["numeric"] = nlohmann::json::array();
  for (const Feature* feature : NumericFeatures(job)) json["numeric"].push_back(feature->name());
  json["features"] = nlohmann::json::array();
  const std::vector<const Feature*> features = EmbeddedFeatures(job);
  for (size_t f = 0; f < features.size(); ++f) {
    const TableLayout& table = tables.sparse[tables.features[f].table_index];
    const auto dim_index = std::distance(dims.begin(), dims.find(table.dim));
    json["features"].push_back(
        {{"name", features[f]->name()},
         {"table", table.name},
         {"dim", table.dim},
         {"dim_index", dim_index},
         {"pooling", tables.features[f].pooling == MEAN ? "mean" : "sum"},
         {"is_list", features[f]->has_sequence() || tables.features[f].columns > 1}});
  }
  return json.dump();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ScriptRun>> ScriptRun::Start(const Job& job, const JobTables& tables,
                                                            Step start_step,
                                                            const ScriptTrace& trace) {
  ScriptProcessOptions options;
  options.command.assign(job.worker().command().begin(), job.worker().command().end());
  options.directory = job.worker().directory();
  options.threads = job.worker().threads();
  ASSIGN_OR_RETURN(std::unique_ptr<ScriptProcess> process, ScriptProcess::Start(options));
  LogLine(absl::StrCat("script ", process->pid(), ": ", job.worker().command(0)));
  ScriptChannelOptions to_script;
  to_script.fd = process->TakeSocket();
  to_script.pidfd = process->pidfd();
  to_script.max_state_bytes = MaxStateBytes(job);
  auto channel = std::make_unique<ScriptChannel>(to_script);
  return std::unique_ptr<ScriptRun>(new ScriptRun(job, std::move(process), std::move(channel),
                                                  DescribeJob(job, tables, start_step, trace)));
}

ScriptRun::ScriptRun(const Job& job, std::unique_ptr<ScriptProcess> process,
                     std::unique_ptr<ScriptChannel> channel, std::string hello)
    : process_(std::move(process)),
      channel_(std::move(channel)),
      hello_(std::move(hello)),
      own_metric_name_(job.evaluate().own_metric()),
      long_patience_(kStartPatience) {}

ScriptRun::~ScriptRun() = default;

absl::Status ScriptRun::Refuse(const std::string& why) const {
  return MarkScriptFailure(absl::FailedPreconditionError(absl::StrCat("the script ", why)));
}

absl::Status ScriptRun::Connect() {
  if (is_connected_) return absl::OkStatus();
  // Where the script has ended already, Receive says why.
  const absl::Status sent = channel_->SendHello(hello_);
  if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
  connecting_.emplace();
  ASSIGN_OR_RETURN(const ScriptMessage ready, Receive());
  connecting_.reset();
  if (ready.header.kind != TC_READY) {
    return Refuse(
        absl::StrCat("answers the worker's hello with a message of kind ", ready.header.kind));
  }
  is_connected_ = true;
  return absl::OkStatus();
}

// Once a second of each wait.
absl::Status ScriptRun::Tick() {
  const absl::Duration elapsed = since_long_wait_->Elapsed();
  if (long_wait_ != nullptr && elapsed < long_patience_) {
    hooks_.on_long_wait(long_wait_, elapsed, /*is_over=*/false);
  }
  if (connecting_.has_value() && connecting_->Elapsed() > kConnectPatience) {
    return Refuse(absl::StrCat("has not connected within ", absl::FormatDuration(kConnectPatience),
                               ": it has to call thermocline.worker()"));
  }
  return hooks_.on_wait();
}

void ScriptRun::BeginLongWait(const char* what, absl::Duration patience) {
  EndLongWait();
  long_wait_ = what;
  long_patience_ = patience;
  since_long_wait_.emplace();
}

void ScriptRun::EndLongWait() {
  if (long_wait_ == nullptr) return;
  hooks_.on_long_wait(std::exchange(long_wait_, nullptr), since_long_wait_->Elapsed(),
                      /*is_over=*/true);
}

absl::StatusOr<ScriptMessage> ScriptRun::Receive() {
  const Stopwatch watch;
  absl::Duration log_at = kSlowAnswer;
  absl::Status interruption;  // What ends a wait is not always the script's fault.
  const auto on_wait = [&] {
    if (watch.Elapsed() >= log_at) {
      LogLine(absl::StrCat("the script (process ", process_->pid(), ") has not answered for ",
                           absl::ToInt64Seconds(watch.Elapsed()), "s"));
      log_at *= 2;
    }
    if (process_->HasEnded() && !is_done_) return absl::UnavailableError("the script has ended");
    return interruption = Tick();
  };
  absl::StatusOr<ScriptMessage> message = channel_->Receive(on_wait);
  while (message.ok() && message->header.kind == TC_WARNING) {
    hooks_.on_warning(message->payload);
    message = channel_->Receive(on_wait);
  }
  RETURN_IF_ERROR(interruption);
  const absl::Status& error = message.status();
  if (absl::IsUnavailable(error) && !is_done_) return DescribeEnd();
  if (absl::IsResourceExhausted(error)) {
    return MarkScriptFailure(absl::ResourceExhaustedError(
        absl::StrCat(error.message(), ", half of cluster.max_pending_size")));
  }
  if (absl::IsInvalidArgument(error) || absl::IsFailedPrecondition(error)) {
    return MarkScriptFailure(error);
  }
  RETURN_IF_ERROR(error);
  if (message->header.kind == TC_FAILED) {
    return MarkScriptFailure(
        absl::AbortedError(absl::StrCat("the script failed:\n", message->payload)));
  }
  is_done_ = is_done_ || message->header.kind == TC_DONE;
  return message;
}

// The error of a script that has closed its end of the socket pair.
absl::Status ScriptRun::DescribeEnd() {
  if (!process_->AwaitEnd(kExitPatience)) {
    return Refuse("has closed its connection to the worker, and still runs");
  }
  const std::string how = absl::StrCat("the script ", process_->DescribeEnd());
  const int by = process_->signal().value_or(0);
  const bool is_crash =
      by == SIGSEGV || by == SIGABRT || by == SIGBUS || by == SIGFPE || by == SIGILL;
  if (by != 0 && !is_crash) return absl::UnavailableError(how);
  return MarkScriptFailure(absl::AbortedError(
      absl::StrCat(how, ", before it was done with the job; the worker's log has what it wrote")));
}

absl::StatusOr<ScriptMessage> ScriptRun::Await(tc_message_kind kind) {
  RETURN_IF_ERROR(Connect());
  ASSIGN_OR_RETURN(ScriptMessage message, Receive());
  if (kind == TC_STEP || kind == TC_SCORES) EndLongWait();
  if (message.header.kind == kind) return message;
  if (message.header.kind == TC_DONE) {
    return Refuse("has left its run before training was over: run.batches() goes on until then");
  }
  if (message.header.kind == TC_EVALUATE) {
    return Refuse("calls run.evaluate() before training is over");
  }
  return Refuse(absl::StrCat("sends a message of kind ", message.header.kind,
                             " where the worker waits for one of kind ", static_cast<int>(kind)));
}

// Where the script has closed its end, returns OK: the next wait has the reason.
absl::Status ScriptRun::Send(const tc_header& header, absl::string_view payload, int fd) {
  RETURN_IF_ERROR(Connect());
  const absl::Status sent = channel_->Send(header, payload, fd);
  return absl::IsUnavailable(sent) ? absl::OkStatus() : sent;
}

absl::Status ScriptRun::SendPhase(const std::string& json) {
  tc_header header = {};
  header.kind = TC_PHASE;
  return Send(header, json);
}

absl::Status ScriptRun::AskForState() {
  tc_header header = {};
  header.kind = TC_SAVE;
  return Send(header, "");
}

absl::Status ScriptRun::SendState(absl::string_view state) {
  tc_header header = {};
  header.kind = TC_LOAD;
  header.bytes = state.size();
  ASSIGN_OR_RETURN(const SharedMemory memory,
                   SharedMemory::Create(std::max<size_t>(1, state.size())));
  std::copy(state.begin(), state.end(), memory.data());
  return Send(header, "", memory.fd());
}

void ScriptRun::OnError(const absl::Status& error) {
  if (!is_connected_ || is_done_ || process_->HasEnded()) return;
  tc_header header = {};
  header.kind = TC_END;
  Send(header, absl::string_view(error.message()).substr(0, TC_PAYLOAD_BYTES)).IgnoreError();
}

absl::Status ScriptRun::EndTraining() {
  is_trained_ = true;
  BeginLongWait("the script's end", kEndPatience);
  return SendPhase(R"({"phase":"trained"})");
}

absl::StatusOr<bool> ScriptRun::WantsScores(bool is_due) {
  ASSIGN_OR_RETURN(const ScriptMessage message, Receive());
  if (message.header.kind == TC_EVALUATE) return true;
  if (!is_done_) {
    return Refuse(absl::StrCat("sends a message of kind ", message.header.kind, " after training"));
  }
  if (is_due) LogLine("the held-out rows are not scored: the script didn't call run.evaluate()");
  return false;
}

absl::Status ScriptRun::CompleteEvaluation(EvaluationResult* result) {
  if (!own_metric_name_.empty() && result->samples > 0) {
    result->own_metric = own_metric_;
    if (!std::isfinite(own_metric_)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the script gives ", own_metric_, " for its metric '", own_metric_name_,
          "' (evaluate.own_metric): run.batches(metric=...) and run.evaluate(net, metric=...) "
          "take the function that computes it"));
    }
  }
  nlohmann::json metrics = {{"samples", result->samples}};
  AddMetrics(*result, &metrics);
  if (is_trained_) BeginLongWait("the script's end", kEndPatience);
  return SendPhase(nlohmann::json({{"phase", "evaluated"}, {"metrics", metrics}}).dump());
}

absl::Status ScriptRun::AwaitEnd() {
  hooks_.on_done();
  BeginLongWait("the script's end", kEndPatience);
  bool has_ended = process_->AwaitEnd(kTick);
  while (!has_ended && since_long_wait_->Elapsed() < kEndPatience) {
    RETURN_IF_ERROR(Tick());
    has_ended = process_->AwaitEnd(kTick);
  }
  EndLongWait();
  if (!has_ended) {
    hooks_.on_warning(absl::StrCat("the script still runs ", absl::FormatDuration(kEndPatience),
                                   " after the job was done, and is ended"));
  } else if (process_->exit_code() != 0) {
    hooks_.on_warning(absl::StrCat("the job is done, but the script ", process_->DescribeEnd(),
                                   "; the worker's log has what it wrote"));
  }
  return absl::OkStatus();
}

}  // namespace thermocline
