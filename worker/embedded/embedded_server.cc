#include "worker/embedded/embedded_server.h"

#include <utility>

#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/job/resolved_job.h"
#include "common/net/host_port.h"
#include "worker/embedded/core_transport.h"

namespace thermocline {
namespace {

// What the launcher tells thermocline-server by flags.
HostedServerOptions OptionsFor(const Job& job, const EmbeddedServer::Options& own) {
  const Cluster& cluster = job.cluster();
  HostedServerOptions options;
  options.limits.apply_threads = static_cast<int>(cluster.server_threads());
  options.limits.load_threads = 0;
  options.limits.max_pending_push_bytes = ParseByteSize(cluster.max_pending_size()).value_or(0);
  options.limits.max_held_pulls = cluster.max_held_pulls();
  options.service.max_message_bytes = static_cast<int>(cluster.max_message_bytes());
  options.service.job_id = own.job_id;
  options.service.is_embedded = true;
  options.service.checkpoint_root = own.checkpoint_root;
  if (job.has_init()) options.service.init_root = job.init().directory();
  options.service.handler_threads = static_cast<int>(cluster.handler_threads());
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
