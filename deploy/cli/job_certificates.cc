#include "deploy/cli/job_certificates.h"

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/disk/file_list.h"
#include "common/net/certificates.h"
#include "common/net/host_port.h"
#include "common/net/rpc.h"
#include "common/net/tls_files.h"
#include "common/net/x509.h"
#include "deploy/http/host_names.h"

namespace thermocline {
namespace {

// In the run directory. Longer than a run takes from one start to the next.
constexpr char kCertificates[] = "certificates";
constexpr absl::Duration kCertificateLifetime = absl::Hours(24 * 365);

absl::Status WriteNew(const CertificateAuthority& authority, Role role,
                      const std::vector<std::string>& hosts, absl::Time now,
                      const TlsFiles& files) {
  ASSIGN_OR_RETURN(const KeyAndRequest made, MakeKeyAndRequest());
  ASSIGN_OR_RETURN(const std::string certificate,
                   authority.Sign(made.request, role, hosts, kCertificateLifetime, now));
  RETURN_IF_ERROR(WritePrivateFile(files.private_key, made.private_key, /*replaces=*/true));
  return WritePrivateFile(files.certificate, certificate, /*replaces=*/true);
}

absl::Time EndOf(const CertificateAuthority& authority) {
  const auto own = x509::ReadCertificates(authority.ca_pem());
  return x509::ToTime(X509_get0_notAfter(own.at(0).get()));
}

// Whether it is good for agents or readers of the job, and will be.
bool IsGood(const TlsFiles& files, const Identity& identity, absl::Time now) {
  const auto texts = ReadTlsFiles(files, TlsUse::kClient, now + kLeastValidity);
  return texts.ok() && IdentityOf(texts->certificate) == identity;
}

// Its key may be the only one there is: it gives way to no other.
absl::Status CheckIsOf(const CertificateAuthority& authority, const std::string& folder,
                       const Job& job) {
  if (authority.job() == job.name()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(folder, " holds the certificate authority of job '", authority.job(),
                   "', and this job is '", job.name(), "': move that folder away"));
}

// Under which readers look for the job's page, where it is beyond loopback.
void AddHostsOfPage(const Http& http, std::vector<std::string>* hosts) {
  const auto address = ParseHostPort(http.address(), "of the job's page");
  if (!address.ok() || IsLoopbackHost(address->host)) return;
  for (const std::string& name : NamesOfThisHost()) hosts->push_back(name);
  hosts->push_back(address->host);
  for (const std::string& name : http.allowed_host()) {
    hosts->emplace_back(WithoutBrackets(name));
  }
}

// Removes the files, by their names, that an earlier start of this run has made.
absl::Status RemoveCertificates(const RunDirectory& directory) {
  std::vector<std::string> names = {"ca.key", "ca.pem"};
  for (const Role role :
       {Role::kController, Role::kServer, Role::kWorker, Role::kReader, Role::kNode}) {
    for (const char* extension : {".key", ".pem"}) {
      names.push_back(absl::StrCat(RoleName(role), extension));
    }
  }
  for (const std::string& name : names) {
    RETURN_IF_ERROR(directory.Remove(absl::StrCat(kCertificates, "/", name)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeCertificates(const RunDirectory& directory, Job* job) {
  if (!job->cluster().tls().automatic()) return absl::OkStatus();
  std::vector<std::string> hosts = {"localhost", "127.0.0.1", "::1"};
  if (!IsLoopbackHost(job->cluster().listen_host())) hosts.push_back(job->cluster().listen_host());
  AddHostsOfPage(job->cluster().http(), &hosts);
  const std::string folder = AbsolutePath(directory.File(kCertificates));
  const std::vector<Role> roles = {Role::kController, Role::kServer, Role::kWorker, Role::kReader};
  job->mutable_cluster()->mutable_tls()->set_directory(folder);
  // An authority's key is there where the job ran over several hosts, or where its user has put it:
  // it may be the only one there is.
  const auto kept = LoadAuthority(folder);
  if (kept.ok()) {
    RETURN_IF_ERROR(CheckIsOf(*kept, folder, *job));
    for (const Role role : roles) {
      RETURN_IF_ERROR(WriteNew(*kept, role, hosts, absl::Now(), TlsFilesIn(folder, role)));
    }
    return absl::OkStatus();
  }
  if (!absl::IsNotFound(kept.status())) return kept.status();
  RETURN_IF_ERROR(RemoveCertificates(directory));
  ASSIGN_OR_RETURN(const CertificateAuthority authority, CertificateAuthority::Create(job->name()));
  return WriteCertificates(authority, folder, roles, hosts, kCertificateLifetime);
}

// The key of the authority stays, since agents that wait for another controller have been given its
// certificate.
absl::Status MakeJoinCertificates(const RunDirectory& directory, const std::string& listen,
                                  Job* job, absl::Time now) {
  if (!job->cluster().tls().automatic()) return absl::OkStatus();
  const std::string folder = AbsolutePath(directory.File(kCertificates));
  job->mutable_cluster()->mutable_tls()->set_directory(folder);
  absl::StatusOr<CertificateAuthority> authority = LoadAuthority(folder);
  if (authority.ok()) RETURN_IF_ERROR(CheckIsOf(*authority, folder, *job));
  if (absl::IsNotFound(authority.status()) ||
      (authority.ok() && EndOf(*authority) < now + kLeastValidity)) {
    RETURN_IF_ERROR(RemoveCertificates(directory));
    authority = CertificateAuthority::Create(job->name(), kAuthorityLifetime, now);
    RETURN_IF_ERROR(authority.status());
    RETURN_IF_ERROR(WriteCertificates(*authority, folder, {}, {}, kCertificateLifetime,
                                      /*with_key=*/true));
  }
  RETURN_IF_ERROR(authority.status());
  for (const Role role : {Role::kNode, Role::kReader}) {
    const TlsFiles files = TlsFilesIn(folder, role);
    if (IsGood(files, {job->name(), role}, now)) continue;
    RETURN_IF_ERROR(WriteNew(*authority, role, {}, now, files));
  }
  if (listen.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const HostPort own, ParseHostPort(listen, "to listen on"));
  std::vector<std::string> hosts = NamesOfThisHost();
  hosts.push_back(own.host);
  AddHostsOfPage(job->cluster().http(), &hosts);
  return WriteNew(*authority, Role::kController, hosts, now, TlsFilesIn(folder, Role::kController));
}

}  // namespace thermocline
