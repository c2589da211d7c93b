// thermocline certificates: a job's authority and a certificate for each role.
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/disk/file_list.h"
#include "common/net/certificates.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"

namespace thermocline {
namespace {

struct CertificatesFlags {
  std::string job, out;
  std::vector<std::string> hosts;
  int64_t days = 365;
};

int RunCertificates(const CertificatesFlags& flags) {
  const absl::Duration lifetime = absl::Hours(24 * flags.days);
  const auto authority = CertificateAuthority::Create(flags.job, lifetime);
  if (!authority.ok()) return Complain(authority.status().message(), kExitUsage);
  std::vector<std::string> hosts = {"localhost", "127.0.0.1", "::1"};
  hosts.insert(hosts.end(), flags.hosts.begin(), flags.hosts.end());
  const absl::Status written = WriteCertificates(
      *authority, flags.out, {std::begin(kAllRoles), std::end(kAllRoles)}, hosts, lifetime,
      /*with_key=*/true);
  if (!written.ok()) {
    return Complain(written.message(), absl::IsUnavailable(written) ? kExitFailed : kExitUsage);
  }
  const std::string folder = AbsolutePath(flags.out);
  std::printf(
      "%s: certificates of job %s, valid for %d days\n"
      "  ca.pem           whom every process of the job trusts\n"
      "  ca.key           signs more of them: keep it, away from the hosts\n"
      "  ROLE.pem, .key   for controller, server, worker, reader and node\n"
      "in the job file: cluster { tls { directory: \"%s\" } }\n",
      flags.out.c_str(), flags.job.c_str(), static_cast<int>(flags.days), folder.c_str());
  return kExitDone;
}

}  // namespace

void AddCertificates(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<CertificatesFlags>();
  CLI::App* command = AddCommand(
      app, "certificates", "makes the certificates of a job that brings its own",
      R"(Writes a certificate authority for the job NAME (ca.pem, ca.key), and a certificate with its key for
each role: controller, server, worker, reader and node. What a role may do is in docs/security.md.
All processes may lie on this machine, or on the hosts named with --host. No file is overwritten.

The job takes them with cluster { tls { directory: "DIR" } }. With cluster { tls { automatic: true } }
a job makes its own, on one machine and over several hosts, and needs none of this.

examples:
  thermocline certificates --job criteo_kaggle --out certs --host h1.example.org --host 10.0.0.7
  thermocline stats h1:40001 --tls-certificate certs/reader.pem --tls-private-key certs/reader.key \
    --tls-ca certs/ca.pem)");
  AddValue(command, "--job", &flags->job, "NAME", "the job's name")->required();
  AddValue(command, "--out", &flags->out, "DIR", "the folder to write to")->required();
  AddValue(command, "--host", &flags->hosts, "HOST",
           "a name or address under which processes are reached (may be repeated)")
      ->allow_extra_args(false);
  AddValue(command, "--days", &flags->days, "N", "how long they are valid; default 365")
      ->transform(WholeNumber(1, 3650));
  OnCommand(command, action, RunCertificates, flags);
}

}  // namespace thermocline
