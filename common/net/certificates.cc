#include "common/net/certificates.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/write_all.h"
#include "common/net/host_port.h"
#include "common/net/x509.h"

namespace thermocline {
namespace {

using namespace x509;  // NOLINT: OpenSSL's objects

constexpr absl::string_view kScheme = "thermocline://";
// In place of a role, in the authority's own certificate.
constexpr absl::string_view kAuthority = "authority";

bool IsJobName(absl::string_view job) {
  return !job.empty() && std::all_of(job.begin(), job.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-';
  });
}

// "JOB/LAST" of thermocline://JOB/LAST; none where the URI has another form.
std::optional<std::pair<absl::string_view, absl::string_view>> SplitUri(absl::string_view uri) {
  if (!absl::ConsumePrefix(&uri, kScheme)) return std::nullopt;
  const size_t slash = uri.find('/');
  if (slash == absl::string_view::npos || !IsJobName(uri.substr(0, slash))) return std::nullopt;
  return std::pair(uri.substr(0, slash), uri.substr(slash + 1));
}

// The URIs among a certificate's names.
std::vector<std::string> UrisOf(const X509* certificate) {
  std::vector<std::string> uris;
  const NamesPtr names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return uris;
}

absl::StatusOr<KeyPtr> MakeKey() {
  KeyPtr key(EVP_EC_gen("P-256"));
  RETURN_IF_ERROR(Must(key != nullptr, "make a key"));
  return key;
}

absl::StatusOr<std::string> PrivateKeyToPem(EVP_PKEY* key) {
  std::string pem = ToPem([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
  RETURN_IF_ERROR(Must(!pem.empty(), "write a key"));
  return pem;
}

absl::StatusOr<std::string> CertificateToPem(X509* certificate) {
  std::string pem = ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
  RETURN_IF_ERROR(Must(!pem.empty(), "write a certificate"));
  return pem;
}

// Appends a name of the type GEN_URI or GEN_DNS.
void AddText(int type, const std::string& text, GENERAL_NAMES* names) {
  ASN1_IA5STRING* const value = ASN1_IA5STRING_new();
  CHECK(ASN1_STRING_set(value, text.data(), static_cast<int>(text.size())) == 1);
  GENERAL_NAME* const name = GENERAL_NAME_new();
  GENERAL_NAME_set0_value(name, type, value);
  sk_GENERAL_NAME_push(names, name);
}

absl::Status AddHost(const std::string& written, GENERAL_NAMES* names) {
  const std::string host(WithoutBrackets(written));
  uint8_t bytes[sizeof(in6_addr)];
  if (inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
      inet_pton(AF_INET6, host.c_str(), bytes) == 1) {
    GENERAL_NAME* const name = GENERAL_NAME_new();
    GENERAL_NAME_set0_value(name, GEN_IPADD, a2i_IPADDRESS(host.c_str()));
    sk_GENERAL_NAME_push(names, name);
    return absl::OkStatus();
  }
  const bool is_name =
      !host.empty() && host.size() <= 253 && std::all_of(host.begin(), host.end(), [](char c) {
        return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
      });
  if (!is_name) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", host, "' is neither the name nor the address of a host"));
  }
  AddText(GEN_DNS, host, names);
  return absl::OkStatus();
}

// A certificate without a signature: subject `common_name`, for the public key of `key`, from `now`
// (and kClockSkew before it) to `end`.
absl::StatusOr<CertificatePtr> Draft(const std::string& common_name, EVP_PKEY* key, absl::Time now,
                                     absl::Time end) {
  CertificatePtr certificate(X509_new());
  uint8_t serial[16];
  RETURN_IF_ERROR(Must(certificate != nullptr && RAND_bytes(serial, sizeof(serial)) == 1,
                       "make a serial number"));
  serial[0] &= 0x7f;  // Positive,
  serial[0] |= 0x40;  // and of the same length each time.
  BIGNUM* const number = BN_bin2bn(serial, sizeof(serial), nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate.get()));
  BN_free(number);
  const auto* const name = reinterpret_cast<const unsigned char*>(common_name.c_str());
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(now - kClockSkew));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(end));
  RETURN_IF_ERROR(
      Must(X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                                      name, static_cast<int>(common_name.size()), -1, 0) == 1 &&
               X509_set_pubkey(certificate.get(), key) == 1,
           "make a certificate"));
  return certificate;
}

struct Extension {
  int id;
  const char* value;
};

absl::Status AddExtensions(const std::vector<Extension>& extensions, const GENERAL_NAMES* names,
                           X509* issuer, X509* certificate) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  bool added = true;
  for (const Extension& each : extensions) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, each.id, each.value);
    added &= extension != nullptr && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
  }
  // X509_add1_ext_i2d changes nothing of the names, but takes no const pointer.
  added &= X509_add1_ext_i2d(certificate, NID_subject_alt_name, const_cast<GENERAL_NAMES*>(names),
                             0, 0) == 1;
  return Must(added, "extend a certificate");
}

// The public key of a request, if it is one that we sign.
absl::StatusOr<KeyPtr> CheckRequest(const std::string& pem) {
  const RequestPtr request(PEM_read_bio_X509_REQ(Reading(pem).get(), nullptr, nullptr, nullptr));
  if (request == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("no certificate request: ", LastError()));
  }
  KeyPtr key(X509_REQ_get_pubkey(request.get()));
  char curve[32] = "";
  if (key == nullptr || EVP_PKEY_get_group_name(key.get(), curve, sizeof(curve), nullptr) != 1 ||
      absl::string_view(curve) != "prime256v1") {
    ERR_clear_error();
    return absl::InvalidArgumentError("the key of a certificate request has to be on P-256");
  }
  // Shows that the sender has the private key.
  if (X509_REQ_verify(request.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the signature of a certificate request is wrong: ", LastError()));
  }
  return key;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    const int error = errno;
    const bool is_absent = access(path.c_str(), F_OK) != 0 && errno == ENOENT;
    return absl::Status(is_absent ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable,
                        absl::StrCat("can't read '", path, "': ", std::strerror(error)));
  }
  return text.str();
}

}  // namespace

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kController:
      return "controller";
    case Role::kServer:
      return "server";
    case Role::kWorker:
      return "worker";
    case Role::kReader:
      return "reader";
    case Role::kNode:
      return "node";
  }
  return "";
}

bool operator==(const Identity& a, const Identity& b) { return a.job == b.job && a.role == b.role; }

std::string IdentityUri(const Identity& identity) {
  return absl::StrCat(kScheme, identity.job, "/", RoleName(identity.role));
}

std::optional<Identity> ParseIdentityUri(absl::string_view uri) {
  const auto parts = SplitUri(uri);
  if (!parts.has_value()) return std::nullopt;
  for (const Role role : kAllRoles) {
    if (parts->second == RoleName(role)) return Identity{std::string(parts->first), role};
  }
  return std::nullopt;
}

std::optional<Identity> IdentityOf(absl::string_view certificate_pem) {
  const std::vector<CertificatePtr> certificates = ReadCertificates(certificate_pem);
  if (certificates.empty()) return std::nullopt;
  for (const std::string& uri : UrisOf(certificates.front().get())) {
    if (auto identity = ParseIdentityUri(uri)) return identity;
  }
  return std::nullopt;
}

absl::StatusOr<KeyAndRequest> MakeKeyAndRequest() {
  ASSIGN_OR_RETURN(const KeyPtr key, MakeKey());
  const RequestPtr request(X509_REQ_new());
  RETURN_IF_ERROR(Must(request != nullptr && X509_REQ_set_pubkey(request.get(), key.get()) == 1 &&
                           X509_REQ_sign(request.get(), key.get(), EVP_sha256()) > 0,
                       "make a certificate request"));
  KeyAndRequest made;
  ASSIGN_OR_RETURN(made.private_key, PrivateKeyToPem(key.get()));
  made.request = ToPem([&](BIO* bio) { return PEM_write_bio_X509_REQ(bio, request.get()); });
  RETURN_IF_ERROR(Must(!made.request.empty(), "write a certificate request"));
  return made;
}

absl::StatusOr<CertificateAuthority> CertificateAuthority::Create(const std::string& job,
                                                                  absl::Duration lifetime,
                                                                  absl::Time now) {
  if (!IsJobName(job)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", job, "' is no name of a job; letters, digits, '_' and '-' are allowed"));
  }
  ASSIGN_OR_RETURN(const KeyPtr key, MakeKey());
  ASSIGN_OR_RETURN(const CertificatePtr certificate,
                   Draft("thermocline authority", key.get(), now, now + lifetime));
  const NamesPtr names(GENERAL_NAMES_new());
  AddText(GEN_URI, absl::StrCat(kScheme, job, "/", kAuthority), names.get());
  X509* const own = certificate.get();
  X509_set_issuer_name(own, X509_get_subject_name(own));
  RETURN_IF_ERROR(AddExtensions({{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                 {NID_key_usage, "critical,keyCertSign,cRLSign"},
                                 {NID_subject_key_identifier, "hash"}},
                                names.get(), own, own));
  RETURN_IF_ERROR(Must(X509_sign(own, key.get(), EVP_sha256()) > 0, "sign a certificate"));
  CertificateAuthority authority;
  authority.job_ = job;
  ASSIGN_OR_RETURN(authority.certificate_, CertificateToPem(own));
  ASSIGN_OR_RETURN(authority.private_key_, PrivateKeyToPem(key.get()));
  return authority;
}

absl::StatusOr<CertificateAuthority> CertificateAuthority::FromPem(const std::string& certificate,
                                                                   const std::string& private_key,
                                                                   absl::string_view name) {
  const std::vector<CertificatePtr> certificates = ReadCertificates(certificate);
  const KeyPtr key = ReadKey(private_key);
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(name, " ", why));
  };
  if (certificates.empty()) return refuse("has no certificate");
  if (key == nullptr) return refuse(absl::StrCat("has no private key: ", LastError()));
  if (X509_check_private_key(certificates.front().get(), key.get()) != 1) {
    ERR_clear_error();
    return refuse("has a private key of another certificate");
  }
  for (const std::string& uri : UrisOf(certificates.front().get())) {
    const auto parts = SplitUri(uri);
    if (!parts.has_value() || parts->second != kAuthority) continue;
    CertificateAuthority authority;
    authority.job_ = std::string(parts->first);
    authority.certificate_ = certificate;
    authority.private_key_ = private_key;
    return authority;
  }
  return refuse("is not the authority of a job");
}

absl::StatusOr<std::string> CertificateAuthority::Sign(const std::string& request, Role role,
                                                       const std::vector<std::string>& hosts,
                                                       absl::Duration lifetime,
                                                       absl::Time now) const {
  ASSIGN_OR_RETURN(const KeyPtr key, CheckRequest(request));
  const NamesPtr names(GENERAL_NAMES_new());
  AddText(GEN_URI, IdentityUri({job_, role}), names.get());
  for (const std::string& host : hosts) RETURN_IF_ERROR(AddHost(host, names.get()));
  const std::vector<CertificatePtr> own = ReadCertificates(certificate_);
  const KeyPtr own_key = ReadKey(private_key_);
  CHECK(!own.empty() && own_key != nullptr);
  X509* const issuer = own.front().get();
  const absl::Time end = std::min(now + lifetime, ToTime(X509_get0_notAfter(issuer)));
  ASSIGN_OR_RETURN(const CertificatePtr certificate,
                   Draft(absl::StrCat("thermocline ", RoleName(role)), key.get(), now, end));
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer));
  const bool serves = role != Role::kReader && role != Role::kNode;
  RETURN_IF_ERROR(
      AddExtensions({{NID_basic_constraints, "critical,CA:FALSE"},
                     {NID_key_usage, "critical,digitalSignature"},
                     {NID_ext_key_usage, serves ? "serverAuth,clientAuth" : "clientAuth"},
                     {NID_subject_key_identifier, "hash"},
                     {NID_authority_key_identifier, "keyid:always"}},
                    names.get(), issuer, certificate.get()));
  RETURN_IF_ERROR(
      Must(X509_sign(certificate.get(), own_key.get(), EVP_sha256()) > 0, "sign a certificate"));
  return CertificateToPem(certificate.get());
}

absl::Status WritePrivateFile(const std::string& path, absl::string_view text, bool replaces) {
  const std::string target = replaces ? absl::StrCat(path, ".", getpid(), ".tmp") : path;
  if (replaces) unlink(target.c_str());
  const int fd = open(target.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 && errno == EEXIST) {
    return absl::AlreadyExistsError(absl::StrCat("'", path, "' is there already"));
  }
  int error = fd >= 0 && WriteAll(fd, text) ? 0 : errno;
  if (fd >= 0 && close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && replaces && rename(target.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  if (fd >= 0) unlink(target.c_str());
  return absl::UnavailableError(absl::StrCat("can't write '", path, "': ", std::strerror(error)));
}

absl::Status WriteCertificates(const CertificateAuthority& authority, const std::string& directory,
                               const std::vector<Role>& roles,
                               const std::vector<std::string>& hosts, absl::Duration lifetime,
                               bool with_key) {
  std::vector<std::pair<std::string, std::string>> files = {
      {directory + "/ca.pem", authority.ca_pem()}};
  for (const Role role : roles) {
    ASSIGN_OR_RETURN(const KeyAndRequest made, MakeKeyAndRequest());
    ASSIGN_OR_RETURN(std::string certificate, authority.Sign(made.request, role, hosts, lifetime));
    const std::string base = absl::StrCat(directory, "/", RoleName(role));
    files.emplace_back(base + ".pem", std::move(certificate));
    files.emplace_back(base + ".key", made.private_key);
  }
  // Last: where it is, the others are.
  if (with_key) files.emplace_back(directory + "/ca.key", authority.private_key_pem());
  for (const auto& [path, text] : files) {
    if (access(path.c_str(), F_OK) == 0) {
      return absl::AlreadyExistsError(absl::StrCat("'", path, "' is there already"));
    }
  }
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(
        absl::StrCat("can't make the folder '", directory, "': ", std::strerror(errno)));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    const absl::Status written = WritePrivateFile(files[i].first, files[i].second, false);
    if (written.ok()) continue;
    while (i-- > 0) unlink(files[i].first.c_str());  // All or none.
    return written;
  }
  return absl::OkStatus();
}

absl::StatusOr<CertificateAuthority> LoadAuthority(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::string certificate, ReadFile(directory + "/ca.pem"));
  ASSIGN_OR_RETURN(const std::string key, ReadFile(directory + "/ca.key"));
  return CertificateAuthority::FromPem(certificate, key,
                                       absl::StrCat("'", directory, "' (ca.pem, ca.key)"));
}

}  // namespace thermocline
