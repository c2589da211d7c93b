// thermocline-server is one parameter server. A launcher starts it, waits for its port file and
// configures it. It serves until SIGTERM or SIGINT.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/base/process.h"
#include "common/base/process_limits.h"
#include "common/base/threads.h"
#include "common/net/grpc_server.h"
#include "common/net/rpc.h"
#include "server/core/server_config.h"
#include "server/rpc/hosted_server.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:0", "host:port to listen on; port 0 takes a free one");
ABSL_FLAG(std::string, port_file, "", "Write host:port to this file once serving");
ABSL_FLAG(std::string, job_id, "", "Serve this job only; empty: the first that configures us");
ABSL_FLAG(int32_t, apply_threads, 1, "Threads that apply a step's pushes");
ABSL_FLAG(int32_t, load_threads, 0,
          "Threads that load a checkpoint's rows; 0: one for each processor");
ABSL_FLAG(int32_t, checkpoint_threads, 0,
          "Threads that write the files of a checkpoint, one each; 0: one for every four "
          "processors, at most 4");
ABSL_FLAG(
    int32_t, handler_threads, 2,
    "Threads that take pushes and answer held pulls, and as many that answer readers; 2 or more");
ABSL_FLAG(int64_t, max_pending_bytes,
          static_cast<int64_t>(thermocline::ServerLimits().max_pending_push_bytes),
          "Pushes held until they are applied; those of a step, of all workers, must fit");
ABSL_FLAG(int32_t, max_held_pulls, static_cast<int32_t>(thermocline::ServerLimits().max_held_pulls),
          "Pulls held until the pushes they wait for are applied; as many of readers");
ABSL_FLAG(int32_t, max_message_bytes, thermocline::kDefaultMaxMessageBytes,
          "Largest request and largest reply");
ABSL_FLAG(
    std::string, data_dir, "",
    "Folder for push logs and for rows beyond memory, made where it is missing; without it no "
    "job with a durability or a memory budget");
ABSL_FLAG(std::string, checkpoint_root, "",
          "Folder that the job's checkpoints must lie in; without it no job with checkpoints");
ABSL_FLAG(
    std::string, init_root, "",
    "Folder that the checkpoint which the job begins with must lie in; without it no such job");
ABSL_FLAG(std::string, trace_root, "",
          "Folder that the job's trace must lie in; without it no job with a trace");
ABSL_FLAG(uint64_t, incarnation, 0,
          "Counts the processes that serve this index in a generation, from 1: in the names of the "
          "checkpoint files that we write. 0: there is no other");
ABSL_FLAG(std::string, tls_certificate, "", "PEM file: our certificate");
ABSL_FLAG(std::string, tls_private_key, "", "PEM file: its private key");
ABSL_FLAG(std::string, tls_ca, "",
          "PEM file: the CA that must have signed our clients' certificates");
ABSL_FLAG(bool, insecure, false, "Allow plain text beyond loopback: anybody may read and write");

namespace thermocline {
namespace {

// Returns an error that names the first flag with a wrong value, or OK.
absl::Status CheckFlags() {
  const auto check = [](const char* flag, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " is ", value, "; it must be in [", low, ", ", high, "]"));
  };
  absl::Status status = check("max_message_bytes", absl::GetFlag(FLAGS_max_message_bytes),
                              kMinMessageBytes, kMaxMessageBytes);
  status.Update(check("apply_threads", absl::GetFlag(FLAGS_apply_threads), 1, kMaxThreads));
  status.Update(check("load_threads", absl::GetFlag(FLAGS_load_threads), 0, kMaxThreads));
  status.Update(
      check("checkpoint_threads", absl::GetFlag(FLAGS_checkpoint_threads), 0, kMaxThreads));
  status.Update(check("handler_threads", absl::GetFlag(FLAGS_handler_threads), kMinHandlerThreads,
                      kMaxThreads));
  status.Update(check("max_pending_bytes", absl::GetFlag(FLAGS_max_pending_bytes), kMinPendingBytes,
                      kMaxPendingBytes));
  status.Update(check("max_held_pulls", absl::GetFlag(FLAGS_max_held_pulls), 1, kMaxHeldPulls));
  return status;
}

// Blocks the signals that end this process, for all threads to come; main waits for them. An agent
// starts servers with SIGTERM ignored, since on its host that signal is for the agent.
sigset_t BlockEndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  struct sigaction action = {};
  sigaction(SIGTERM, nullptr, &action);
  if (action.sa_handler != SIG_IGN) sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

HostedServerOptions ServerOptions() {
  HostedServerOptions options;
  options.limits.apply_threads = absl::GetFlag(FLAGS_apply_threads);
  options.limits.load_threads = absl::GetFlag(FLAGS_load_threads);
  options.limits.max_pending_push_bytes =
      static_cast<uint64_t>(absl::GetFlag(FLAGS_max_pending_bytes));
  options.limits.max_held_pulls = static_cast<uint32_t>(absl::GetFlag(FLAGS_max_held_pulls));
  options.service.max_message_bytes = absl::GetFlag(FLAGS_max_message_bytes);
  options.service.job_id = absl::GetFlag(FLAGS_job_id);
  options.service.checkpoint_root = absl::GetFlag(FLAGS_checkpoint_root);
  options.service.init_root = absl::GetFlag(FLAGS_init_root);
  options.service.trace_root = absl::GetFlag(FLAGS_trace_root);
  options.service.handler_threads = absl::GetFlag(FLAGS_handler_threads);
  options.data_dir = absl::GetFlag(FLAGS_data_dir);
  options.incarnation = absl::GetFlag(FLAGS_incarnation);
  options.checkpoint_threads = absl::GetFlag(FLAGS_checkpoint_threads);
  options.exit_code_if_broken = kExitFailed;
  return options;
}

int Run() {
  if (const absl::Status threads = CheckThreads(); !threads.ok()) {
    LogLine(absl::StrCat("failed: ", threads.ToString()));
    return kExitTrouble;
  }
  const absl::Status flags = CheckFlags();
  if (!flags.ok()) {
    LogLine(flags.message());
    return kExitUsage;
  }
  // A file that reaches the limit of size (ulimit -f) is treated like a full disk; SIGXFSZ would
  // end the process.
  signal(SIGXFSZ, SIG_IGN);
  const sigset_t end_signals = BlockEndSignals();

  HostedServer server(ServerOptions());
  GrpcServer::Options calls;
  calls.address = absl::GetFlag(FLAGS_listen);
  calls.tls = {absl::GetFlag(FLAGS_tls_certificate), absl::GetFlag(FLAGS_tls_private_key),
               absl::GetFlag(FLAGS_tls_ca)};
  calls.insecure = absl::GetFlag(FLAGS_insecure);
  if (const absl::Status served = server.Serve(calls); !served.ok()) {
    LogLine(served.message());
    return absl::IsUnavailable(served) ? kExitFailed : kExitUsage;
  }
  if (!calls.tls.empty()) {
    LogLine(absl::StrCat("TLS certificate ", DescribeCertificate(calls.tls.certificate)));
  }
  LogLine(absl::StrCat("serving on ", server.address(), ", process ", getpid()));
  if (const std::string path = absl::GetFlag(FLAGS_port_file); !path.empty()) {
    const absl::Status written = WritePortFile(path, server.address());
    if (!written.ok()) {
      LogLine(written.message());
      return kExitFailed;
    }
  }

  int signal = 0;
  sigwait(&end_signals, &signal);
  LogLine(absl::StrCat("signal ", signal, ": ending"));
  server.Shutdown();
  return 0;
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  thermocline::ParseProgramFlags(
      "one parameter server: holds one shard of every table of a job.\n"
      "  thermocline-server --listen=127.0.0.1:0 --port_file=/tmp/server.port",
      argc, argv);
  thermocline::KeepGrpcQuiet(/*logs_handshakes=*/true);
  thermocline::RaiseOpenFileLimit();
  thermocline::TuneMallocForMessages();
  thermocline::TurnOffMutexChecks();
  return thermocline::Run();
}
