#include "common/net/credentials.h"

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/net/loopback.h"

namespace thermocline {
namespace {

struct TlsTexts {
  std::string certificate;
  std::string private_key;
  std::string ca;
};

absl::StatusOr<std::string> ReadPem(absl::string_view what, const std::string& path) {
  if (path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS needs a certificate, a private key and a CA: no ", what, " is named"));
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::NotFoundError(absl::StrCat("cannot read the TLS ", what, " '", path, "'"));
  }
  if (!absl::StrContains(text.str(), "-----BEGIN ")) {
    return absl::InvalidArgumentError(
        absl::StrCat("the TLS ", what, " '", path, "' is no PEM file"));
  }
  return text.str();
}

absl::StatusOr<TlsTexts> ReadTls(const TlsFiles& files) {
  TlsTexts texts;
  ASSIGN_OR_RETURN(texts.certificate, ReadPem("certificate", files.certificate));
  ASSIGN_OR_RETURN(texts.private_key, ReadPem("private key", files.private_key));
  ASSIGN_OR_RETURN(texts.ca, ReadPem("CA", files.ca));
  return texts;
}

// address: host:port, where the host of an IPv6 address is bracketed.
bool IsOnLoopback(absl::string_view address) {
  const absl::string_view host = address.substr(0, address.rfind(':'));
  return IsLoopbackHost(host) && (!absl::StrContains(host, ':') || absl::StartsWith(host, "["));
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsFiles& files) {
  if (files.empty()) return grpc::InsecureChannelCredentials();
  ASSIGN_OR_RETURN(const TlsTexts texts, ReadTls(files));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = texts.ca;
  options.pem_private_key = texts.private_key;
  options.pem_cert_chain = texts.certificate;
  return grpc::SslCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsFiles& files) {
  if (files.empty()) return grpc::InsecureServerCredentials();
  ASSIGN_OR_RETURN(const TlsTexts texts, ReadTls(files));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = texts.ca;
  options.pem_key_cert_pairs.push_back({texts.private_key, texts.certificate});
  return grpc::SslServerCredentials(options);
}

absl::Status CheckMayListen(const std::string& address, const TlsFiles& files, bool insecure) {
  if (IsOnLoopback(address) || !files.empty() || insecure) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", address,
                   "' is not on loopback: anybody who reaches it could read and change the model. "
                   "Give a TLS certificate, private key and CA, or --insecure"));
}

}  // namespace thermocline
