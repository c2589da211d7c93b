// thermocline-worker is one trainer. A launcher starts it with a resolved job file and the
// addresses of the servers. It trains its share of every batch, and rank 0 evaluates. In a job
// without servers it has one of its own, and goes on serving when it is done.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/process.h"
#include "common/base/process_limits.h"
#include "common/base/scheduler.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/job/data_place.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "common/net/grpc_server.h"
#include "common/net/rpc.h"
#include "common/trace/process_trace.h"
#include "worker/embedded/embedded_server.h"
#include "worker/exchange/exchange.h"
#include "worker/exchange/grpc_exchange.h"
#include "worker/exchange/local_socket.h"
#include "worker/fae/pack_identity.h"
#include "worker/session/grpc_transport.h"
#include "worker/session/retry_policy.h"
#include "worker/train/launcher_orders.h"
#include "worker/train/progress.h"
#include "worker/train/worker.h"
#include "worker/train/worker_device.h"
#include "worker/train/worker_service.h"

ABSL_FLAG(std::string, job, "", "Resolved job file");
ABSL_FLAG(std::string, job_id, "", "What the servers were configured for; empty: the job's name");
ABSL_FLAG(uint32_t, rank, 0, "Worker rank, from 0");
ABSL_FLAG(uint32_t, local_rank, 0,
          "Rank among the workers of this host, which take its GPUs in turn");
ABSL_FLAG(uint64_t, generation, 1, "Generation that the servers were configured for");
ABSL_FLAG(uint64_t, start_step, 0,
          "First step to train; the servers hold the model as all steps before it left it");
ABSL_FLAG(
    std::string, schedule, "",
    "Where the data go on, as text: a place at or before --start_step; empty: as the job says");
ABSL_FLAG(bool, eval_only, false,
          "Train nothing; rank 0 scores the held-out rows with the model before --start_step");
ABSL_FLAG(std::vector<std::string>, servers, {}, "host:port of each server, by index");
ABSL_FLAG(std::string, embedded_port_file, "",
          "Of a job without servers (cluster.servers: 0): write host:port of the server in this "
          "process to this file once it serves");
ABSL_FLAG(std::string, embedded_data_dir, "",
          "Folder for its rows beyond memory; without it no job with a memory budget");
ABSL_FLAG(std::string, embedded_checkpoint_root, "",
          "Folder that the job's checkpoints must lie in; without it no job with checkpoints");
ABSL_FLAG(std::string, listen, "127.0.0.1:0",
          "host:port for the worker's own calls; port 0 takes a free one");
ABSL_FLAG(std::string, port_file, "", "Write host:port to this file once serving");
ABSL_FLAG(int32_t, progress_fd, -1, "Write progress as JSON lines to this file descriptor");
ABSL_FLAG(std::string, data_index, "",
          "Folder of the indexes of text files, which rank 0 makes; empty: none is kept");
ABSL_FLAG(std::string, tls_certificate, "", "PEM file: our certificate, instead of the job's");
ABSL_FLAG(std::string, tls_private_key, "", "PEM file: its private key");
ABSL_FLAG(std::string, tls_ca, "",
          "PEM file: the CA that must have signed the certificates of servers and clients");
ABSL_FLAG(std::string, result_file, "", "Write the result as JSON to this file");

namespace thermocline {
namespace {

// No job comes near it; products with it stay in range.
constexpr uint64_t kMaxStartStep = uint64_t{1} << 40;

// Returns the settings of the flags, and of the job where there is no flag.
TlsFiles TlsOf(const Job& job) {
  const TlsFiles own = {absl::GetFlag(FLAGS_tls_certificate), absl::GetFlag(FLAGS_tls_private_key),
                        absl::GetFlag(FLAGS_tls_ca)};
  return own.empty() ? TlsFilesOf(job.cluster().tls(), Role::kWorker) : own;
}

absl::Status WriteResult(const std::string& path, const WorkerResult& result) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path);
  file << WorkerResultToJson(result);
  file.close();
  return file.good() ? absl::OkStatus()
                     : absl::UnavailableError(absl::StrCat("can't write ", path));
}

// Makes this worker's part of the exchange with other workers, once the launcher has sent their
// addresses. All that the arguments point to must outlive it.
absl::StatusOr<std::unique_ptr<Exchange>> JoinExchange(const Job& job,
                                                       const ExchangeOptions& options,
                                                       ExchangeHooks hooks,
                                                       GrpcExchangeServer* server,
                                                       Scheduler* scheduler) {
  GrpcExchange::Options streams;
  ASSIGN_OR_RETURN(streams.addresses,
                   server->AwaitIntroduction(absl::Seconds(job.cluster().startup_timeout_s())));
  streams.tls = TlsOf(job);
  streams.max_message_bytes = static_cast<int>(job.cluster().max_message_bytes());
  streams.socket_folder = LocalSocketFolder();
  ASSIGN_OR_RETURN(std::unique_ptr<GrpcExchange> transport, GrpcExchange::Create(streams, server));
  LogLine(absl::StrCat("blocks go to ", transport->DescribeWays()));
  return std::make_unique<Exchange>(options, std::move(hooks), std::move(transport), scheduler);
}

// The way to the servers; `embedded`: to the one of this process, where there is one.
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(const Job& job,
                                                         const std::vector<std::string>& addresses,
                                                         EmbeddedServer* embedded) {
  if (embedded != nullptr) return embedded->MakeTransport();
  GrpcTransport::Options options;
  options.addresses = addresses;
  options.tls = TlsOf(job);
  options.channels_per_server = static_cast<int>(job.cluster().channels_per_server());
  options.max_message_bytes = static_cast<int>(job.cluster().max_message_bytes());
  return GrpcTransport::Create(options);
}

absl::Status Work(const Job& job, WorkerOptions options, const std::vector<std::string>& addresses,
                  EmbeddedServer* embedded, GrpcExchangeServer* exchange_server,
                  WorkerProgress* progress) {
  RETURN_IF_ERROR(AwaitServers(job, {options.job_id, options.generation, addresses, TlsOf(job),
                                     absl::Seconds(job.cluster().startup_timeout_s())}));
  ThreadScheduler scheduler;
  ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport,
                   MakeTransport(job, addresses, embedded));
  options.make_exchange = [&](const ExchangeOptions& exchange, ExchangeHooks hooks) {
    return JoinExchange(job, exchange, std::move(hooks), exchange_server, &scheduler);
  };
  ASSIGN_OR_RETURN(const WorkerResult result,
                   RunWorker(job, options, transport.get(), &scheduler, progress));
  LogLine(absl::StrCat("done: step ", result.steps, ", ", result.new_samples, " samples in ",
                       result.train_s, " s"));
  return WriteResult(absl::GetFlag(FLAGS_result_file), result);
}

// Begins the trace that the job asks for, unless its steps are over.
void BeginTrace(const Job& job, const WorkerOptions& options, std::optional<ProcessTrace>* trace) {
  const Step last(static_cast<int64_t>(job.trace().last_step()));
  if (!job.has_trace() || options.eval_only || options.start_step > last) return;
  ProcessTraceOptions traced;
  traced.directory = options.trace_directory;
  traced.job = job.name();
  traced.role = "worker";
  traced.index = options.rank.value();
  traced.generation = options.generation;
  traced.first = Step(static_cast<int64_t>(job.trace().first_step()));
  traced.last = last;
  trace->emplace(std::move(traced));
}

// Listens for the other workers of this host. Returns null if they have to use TCP.
std::unique_ptr<LocalSocket> ListenLocally(const Job& job, const std::string& address,
                                           GrpcExchangeServer* exchange_server) {
  if (!ExchangesBlocks(job) || absl::GetFlag(FLAGS_eval_only)) return nullptr;
  auto socket = LocalSocket::Listen(LocalSocketFolder(), address, exchange_server);
  if (socket.ok()) return *std::move(socket);
  LogLine(absl::StrCat("no Unix socket for other workers of this host, which use TCP: ",
                       socket.status().message()));
  return nullptr;
}

// Returns the step and schedule with which training begins.
absl::Status SetStart(WorkerOptions* options) {
  const uint64_t step = absl::GetFlag(FLAGS_start_step);
  if (step > kMaxStartStep) {
    return absl::InvalidArgumentError(
        absl::StrCat("--start_step is ", step, "; at most ", kMaxStartStep));
  }
  options->start_step = Step(static_cast<int64_t>(step));
  const std::string schedule = absl::GetFlag(FLAGS_schedule);
  if (schedule.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(options->data_place, ParseDataPlace(schedule));
  return absl::OkStatus();
}

// Begins the server of this process, if the job has none of its own.
absl::StatusOr<std::unique_ptr<EmbeddedServer>> StartEmbeddedServer(const Job& job,
                                                                    const std::string& job_id) {
  if (!HasEmbeddedServer(job.cluster())) return nullptr;
  // As thermocline-server: a file that reaches the limit of size is treated like a full disk.
  signal(SIGXFSZ, SIG_IGN);
  ASSIGN_OR_RETURN(std::unique_ptr<EmbeddedServer> embedded,
                   EmbeddedServer::Start(job, {job_id, absl::GetFlag(FLAGS_embedded_data_dir),
                                               absl::GetFlag(FLAGS_embedded_checkpoint_root)}));
  LogLine(
      absl::StrCat("the embedded server serves on ", embedded->address(), ", process ", getpid()));
  if (const std::string path = absl::GetFlag(FLAGS_embedded_port_file); !path.empty()) {
    RETURN_IF_ERROR(WritePortFile(path, embedded->address()));
  }
  return embedded;
}

// Until a signal ends the process: what was trained is with the embedded server, and the launcher
// still asks it for checkpoints, stats and digest. The end of the progress tells the launcher that
// the worker is done.
void ServeOn() {
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const int progress = absl::GetFlag(FLAGS_progress_fd);
  if (progress >= 0 && dup2(nowhere, progress) < 0) close(progress);
  while (true) pause();
}

int Run() {
  if (const absl::Status threads = CheckThreads(); !threads.ok()) {
    LogLine(absl::StrCat("failed: ", threads.ToString()));
    return kExitTrouble;
  }
  absl::StatusOr<Job> job = LoadJob(absl::GetFlag(FLAGS_job), {});
  if (!job.ok()) {
    LogLine(job.status().message());
    return absl::IsUnavailable(job.status()) ? kExitTrouble : kExitUsage;
  }
  FillPackDirectory(absl::GetFlag(FLAGS_job), &*job);
  WorkerOptions options;
  options.job_id = absl::GetFlag(FLAGS_job_id).empty() ? job->name() : absl::GetFlag(FLAGS_job_id);
  options.generation = absl::GetFlag(FLAGS_generation);
  options.rank = WorkerRank(absl::GetFlag(FLAGS_rank));
  options.eval_only = absl::GetFlag(FLAGS_eval_only);
  options.data_index.folder = absl::GetFlag(FLAGS_data_index);
  // The job file lies in the run directory.
  options.trace_directory =
      std::filesystem::absolute(absl::GetFlag(FLAGS_job)).parent_path() / kTraceFolder;
  options.data_index.writes = options.rank == WorkerRank(0);
  options.make_device = [](const Job& job) {
    return MakeWorkerDevice(job, absl::GetFlag(FLAGS_local_rank));
  };
  if (const absl::Status start = SetStart(&options); !start.ok()) {
    LogLine(start.message());
    return kExitUsage;
  }
  NamedCheckpoints named_checkpoints(options.start_step);
  options.named_checkpoints = &named_checkpoints;
  EvaluationDecisions decisions;
  options.decisions = &decisions;
  std::vector<std::string> addresses = absl::GetFlag(FLAGS_servers);
  if (addresses.size() != job->cluster().servers() ||
      options.rank.value() >= job->cluster().workers()) {
    LogLine(absl::StrCat("rank ", options.rank.value(), " and ", addresses.size(),
                         " servers don't fit a job of ", job->cluster().workers(), " workers and ",
                         job->cluster().servers(), " servers"));
    return kExitUsage;
  }

  const absl::Status files =
      CheckOpenFiles(absl::StrCat("worker ", options.rank.value()),
                     1 + addresses.size() * uint64_t{job->cluster().channels_per_server()} +
                         2 * uint64_t{job->cluster().workers() - 1});
  if (!files.ok()) {
    LogLine(files.message());
    return kExitUsage;
  }
  WorkerProgress progress(options.job_id, options.rank, absl::GetFlag(FLAGS_progress_fd));
  GrpcExchangeServer exchange_server(
      {options.job_id, options.generation, options.rank, job->cluster().workers()});
  WorkerService service(options.job_id, options.generation, &progress, &named_checkpoints,
                        &decisions, &exchange_server);
  GrpcServer::Options server_options;
  server_options.address = absl::GetFlag(FLAGS_listen);
  server_options.tls = TlsOf(*job);
  server_options.job_id = options.job_id;
  server_options.insecure = job->cluster().insecure();
  server_options.service = Worker::service_full_name();
  const auto server = GrpcServer::Start(server_options, {&service});
  if (!server.ok()) {
    LogLine(server.status().message());
    return absl::IsUnavailable(server.status()) ? kExitTrouble : kExitUsage;
  }
  if (!server_options.tls.empty()) {
    LogLine(absl::StrCat("TLS certificate ", DescribeCertificate(server_options.tls.certificate)));
  }
  const auto embedded = StartEmbeddedServer(*job, options.job_id);
  if (!embedded.ok()) {
    LogLine(embedded.status().message());
    return absl::IsUnavailable(embedded.status()) ? kExitTrouble : kExitUsage;
  }
  if (*embedded != nullptr) addresses = {(*embedded)->address()};
  // The socket comes before other workers know the address, from which they derive its path.
  const std::unique_ptr<LocalSocket> socket =
      ListenLocally(*job, (*server)->address(), &exchange_server);
  absl::Status status;
  if (const std::string path = absl::GetFlag(FLAGS_port_file); !path.empty()) {
    status = WritePortFile(path, (*server)->address());
  }
  LogLine(absl::StrCat("worker ", options.rank.value(), " of job '", options.job_id, "', stats on ",
                       (*server)->address()));
  std::optional<ProcessTrace> trace;
  BeginTrace(*job, options, &trace);
  NameTraceThread("train");
  if (status.ok()) {
    status = Work(*job, options, addresses, embedded->get(), &exchange_server, &progress);
  }
  trace.reset();
  if (status.ok() && *embedded != nullptr) ServeOn();
  // The socket goes first, since another process that gets the address has a socket of the same
  // name.
  if (socket != nullptr) socket->Shutdown(/*grace_ms=*/100);
  (*server)->Shutdown(/*grace_ms=*/100);
  if (!status.ok()) {
    LogLine(absl::StrCat("failed: ", status.ToString(absl::StatusToStringMode::kWithNoExtraData)));
  }
  return ExitCodeOf(status);
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  thermocline::ParseProgramFlags(
      "one worker: trains its share of every batch of a job.\n"
      "  thermocline-worker --job=run/job.textproto --servers=127.0.0.1:4000 --rank=0",
      argc, argv);
  thermocline::KeepGrpcQuiet(/*logs_handshakes=*/true);
  thermocline::RaiseOpenFileLimit();
  thermocline::TuneMallocForMessages();
  thermocline::TurnOffMutexChecks();
  return thermocline::Run();
}
