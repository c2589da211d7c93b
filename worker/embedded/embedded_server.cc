#include "worker/embedded/embedded_server.h"

#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/job/resolved_job.h"
#include "common/job/server_settings.h"
#include "common/net/host_port.h"
#include "worker/embedded/core_transport.h"

namespace thermocline {
namespace {

HostedServerOptions OptionsFor(const Job& job, const EmbeddedServer::Options& own) {
  const auto [apply_threads, handler_threads, max_pending_bytes, max_held_pulls, max_message_bytes,
              init_root] = ServerSettingsOf(job);
  HostedServerOptions options;
  options.limits.apply_threads = apply_threads;
  options.limits.load_threads = 0;
  options.limits.max_pending_push_bytes = max_pending_bytes;
  options.limits.max_held_pulls = max_held_pulls;
  options.service.max_message_bytes = max_message_bytes;
  options.service.job_id = own.job_id;
  options.service.is_embedded = true;
  options.service.checkpoint_root = own.checkpoint_root;
  options.service.init_root = init_root;
  options.service.handler_threads = handler_threads;
  options.data_dir = own.data_dir;
  options.incarnation = 1;  // A generation has one.
  options.exit_code_if_broken = kExitTrouble;
  return options;
}

}  // namespace

EmbeddedServer::EmbeddedServer(const HostedServerOptions& options)
    : threads_(options.service.handler_threads), server_(options) {}

absl::StatusOr<std::unique_ptr<EmbeddedServer>> EmbeddedServer::Start(const Job& job,
                                                                      const Options& options) {
  std::unique_ptr<EmbeddedServer> embedded(new EmbeddedServer(OptionsFor(job, options)));
  GrpcServer::Options calls;
  calls.address = JoinHostPort(job.cluster().listen_host(), 0);
  calls.tls = TlsFilesOf(job.cluster().tls(), Role::kServer);
  calls.insecure = job.cluster().insecure();
  RETURN_IF_ERROR(embedded->server_.Serve(calls));
  return embedded;
}

std::unique_ptr<Transport> EmbeddedServer::MakeTransport() {
  CoreTransport::Options options;
  options.threads = threads_;
  options.pulls = server_.service()->pull_stats(wire::PullKind::kTrain);
  options.reads = server_.service()->pull_stats(wire::PullKind::kRead);
  options.pushes = server_.service()->push_stats();
  return std::make_unique<CoreTransport>(server_.core(), options);
}

}  // namespace thermocline
