#include "deploy/nodes/process_keys.h"

#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/net/certificates.h"
#include "common/net/tls_files.h"
#include "deploy/nodes/node_table.h"

namespace thermocline {

absl::StatusOr<std::string> MakeKey(const LocalProcesses& processes, const ProcessId& id) {
  ASSIGN_OR_RETURN(const KeyAndRequest made, MakeKeyAndRequest());
  RETURN_IF_ERROR(WritePrivateFile(processes.TlsOf(id).private_key, made.private_key,
                                   /*replaces=*/true));
  return made.request;
}

absl::Status WriteCertificate(const LocalProcesses& processes, const WantedProcess& wanted) {
  const TlsFiles files = processes.TlsOf(FromNodeProcess(wanted.id()));
  return WritePrivateFile(files.certificate, wanted.certificate(), /*replaces=*/true);
}

void RemoveKey(const LocalProcesses& processes, const RunDirectory& directory,
               const ProcessId& id) {
  if (!processes.NeedsOwnCertificate(id.role)) return;
  for (const char* extension : {"key", "pem"}) {
    directory.Remove(ProcessFileName(id.Name(), extension)).IgnoreError();
  }
}

void RemoveKeys(const LocalProcesses& processes, const RunDirectory& directory,
                const Cluster& cluster) {
  for (const ProcessRole role : {ProcessRole::kServer, ProcessRole::kWorker}) {
    const uint32_t count = role == ProcessRole::kServer ? cluster.servers() : cluster.workers();
    for (uint32_t i = 0; i < count; ++i) RemoveKey(processes, directory, ProcessId{role, i});
  }
}

}  // namespace thermocline
