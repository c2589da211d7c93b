#include "common/net/tls_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/net/control_client.h"
#include "common/net/grpc_server.h"
#include "common/net/rpc.h"

namespace thermocline {
namespace {

constexpr absl::Duration kHour = absl::Hours(1);
constexpr absl::Duration kTimeout = absl::Seconds(30);

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A folder of certificates of two authorities.
class TlsFilesTest : public testing::Test {
 protected:
  TlsFilesTest()
      : folder_(absl::StrCat(testing::TempDir(), "/tls-",
                             testing::UnitTest::GetInstance()->current_test_info()->name())),
        ours_(*CertificateAuthority::Create("job")),
        theirs_(*CertificateAuthority::Create("job")) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }

  // From `now` on (and a little before) for an hour.
  TlsFiles Make(const std::string& name, Role role, absl::Time now = absl::Now(),
                const std::string& host = "127.0.0.1") {
    return MakeBy(ours_, name, role, now, host);
  }
  TlsFiles MakeBy(const CertificateAuthority& authority, const std::string& name, Role role,
                  absl::Time now = absl::Now(), const std::string& host = "127.0.0.1") {
    const auto made = MakeKeyAndRequest();
    const auto certificate = authority.Sign(made->request, role, {host}, kHour, now);
    EXPECT_TRUE(certificate.ok()) << certificate.status();
    const std::string base = absl::StrCat(folder_, "/", name);
    std::ofstream(base + ".pem") << *certificate;
    std::ofstream(base + ".key") << made->private_key;
    std::ofstream(base + "-ca.pem") << authority.ca_pem();
    return {base + ".pem", base + ".key", base + "-ca.pem"};
  }

  static void ExpectRefused(const TlsFiles& files, TlsUse use, absl::StatusCode code,
                            const std::string& file, const std::string& why) {
    const absl::Status refused = ReadTlsFiles(files, use).status();
    EXPECT_EQ(refused.code(), code) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), absl::StrCat("'", file, "'"))) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), why)) << refused;
  }

  const std::string folder_;
  const CertificateAuthority ours_, theirs_;
};

TEST_F(TlsFilesTest, GoodOnesAreRead) {
  const TlsFiles files = Make("good", Role::kServer);
  for (const TlsUse use : {TlsUse::kServer, TlsUse::kClient}) {
    const auto texts = ReadTlsFiles(files, use);
    ASSERT_TRUE(texts.ok()) << texts.status();
    EXPECT_EQ(texts->certificate, TextOf(files.certificate));
  }
}

TEST_F(TlsFilesTest, TimesAreChecked) {
  const TlsFiles old = Make("old", Role::kServer, absl::FromUnixSeconds(1600000000));
  ExpectRefused(old, TlsUse::kServer, absl::StatusCode::kFailedPrecondition, old.certificate,
                "expired at 2020-09-13 13:26:40 UTC");
  const TlsFiles early = Make("early", Role::kServer, absl::Now() + absl::Hours(24));
  ExpectRefused(early, TlsUse::kServer, absl::StatusCode::kFailedPrecondition, early.certificate,
                "is not valid before ");
}

TEST_F(TlsFilesTest, AnExpiredCaIsNamed) {
  const absl::Time then = absl::FromUnixSeconds(1600000000);
  const auto expired = CertificateAuthority::Create("job", absl::Hours(2), then);
  const TlsFiles files = MakeBy(*expired, "leaf", Role::kServer, then);
  ExpectRefused(files, TlsUse::kServer, absl::StatusCode::kFailedPrecondition, files.ca,
                "expired at 2020-09-13 14:26:40 UTC");
  // It was good once: now is the caller's.
  EXPECT_TRUE(ReadTlsFiles(files, TlsUse::kServer, then + absl::Minutes(59)).ok());
}

TEST_F(TlsFilesTest, FilesHaveToFitTogether) {
  const TlsFiles one = Make("one", Role::kServer), other = Make("other", Role::kServer);
  TlsFiles files = one;
  files.private_key = other.private_key;
  ExpectRefused(files, TlsUse::kServer, absl::StatusCode::kInvalidArgument, other.private_key,
                absl::StrCat("is not the key of the certificate '", one.certificate, "'"));
  files = one;
  files.ca = MakeBy(theirs_, "theirs", Role::kServer).ca;
  ExpectRefused(files, TlsUse::kServer, absl::StatusCode::kInvalidArgument, one.certificate,
                absl::StrCat("was not signed by the CA in '", files.ca, "'"));
  files = one;
  files.certificate = one.private_key;
  ExpectRefused(files, TlsUse::kServer, absl::StatusCode::kInvalidArgument, one.private_key,
                "holds no certificate");
  files = one;
  files.private_key = one.certificate;
  ExpectRefused(files, TlsUse::kServer, absl::StatusCode::kInvalidArgument, one.certificate,
                "holds no private key");
  files = one;
  files.ca = one.private_key;
  ExpectRefused(files, TlsUse::kServer, absl::StatusCode::kInvalidArgument, one.private_key,
                "holds no certificate");
}

TEST_F(TlsFilesTest, AReaderDoesNotServe) {
  const TlsFiles files = Make("reader", Role::kReader);
  EXPECT_TRUE(ReadTlsFiles(files, TlsUse::kClient).ok());
  ExpectRefused(files, TlsUse::kServer, absl::StatusCode::kInvalidArgument, files.certificate,
                "is not for servers");
}

// A server whose credentials nothing has checked.
std::unique_ptr<grpc::Server> Serve(const TlsFiles& files, std::string* address) {
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = TextOf(files.ca);
  options.pem_key_cert_pairs.push_back({TextOf(files.private_key), TextOf(files.certificate)});
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
  static ParameterServer::Service service;
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  *address = absl::StrCat("127.0.0.1:", port);
  return server;
}

TEST_F(TlsFilesTest, FailedHandshakesAreExplained) {
  const TlsFiles client = Make("client", Role::kController);
  struct Case {
    TlsFiles server, client;
    std::string why;
  };
  TlsFiles distrusts = client;
  distrusts.ca = MakeBy(theirs_, "theirs", Role::kServer).ca;
  TlsFiles stranger = MakeBy(theirs_, "stranger", Role::kController);
  stranger.ca = client.ca;
  const TlsFiles server = Make("server", Role::kServer);
  const TlsFiles old = Make("old", Role::kController, absl::FromUnixSeconds(1600000000));
  const std::vector<Case> cases = {
      {server, client, ""},
      {Make("old-server", Role::kServer, absl::FromUnixSeconds(1600000000)), client,
       "shows (thermocline://job/server) expired at 2020-09-13 13:26:40 UTC"},
      {Make("early-server", Role::kServer, absl::Now() + absl::Hours(9)), client,
       "shows (thermocline://job/server) is not valid before "},
      {Make("other-host", Role::kServer, absl::Now(), "10.9.8.7"), client, "is for other hosts"},
      {Make("reader", Role::kReader), client, "is not for servers"},
      {server, distrusts, absl::StrCat("was not signed by the CA in '", distrusts.ca, "'")},
      {server, stranger,
       absl::StrCat("refuses our certificate '", stranger.certificate,
                    "', thermocline://job/controller, valid until ")},
      {server, old,
       absl::StrCat("refuses our certificate '", old.certificate,
                    "', thermocline://job/controller, valid until 2020-09-13 13:26:40 UTC: ")},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.why);
    std::string address;
    const auto listening = Serve(each.server, &address);
    const std::string why = ExplainHandshake(address, each.client, kTimeout);
    if (each.why.empty()) {
      EXPECT_EQ(why, "");
    } else {
      EXPECT_TRUE(absl::StrContains(why, each.why)) << why;
      EXPECT_TRUE(absl::StrContains(why, address)) << why;
    }
  }
}

TEST_F(TlsFilesTest, OtherEndsOfAConnectionAreNotExplained) {
  const TlsFiles client = Make("client", Role::kController);
  std::string address;
  Serve(Make("server", Role::kServer), &address);  // It ends at once.
  EXPECT_EQ(ExplainHandshake(address, client, kTimeout), "");
  EXPECT_EQ(ExplainHandshake(address, {}, kTimeout), "");
  EXPECT_EQ(ExplainHandshake("nonsense", client, kTimeout), "");
}

TEST_F(TlsFilesTest, APlainServerSpeaksNoTls) {
  ParameterServer::Service service;
  const auto server = GrpcServer::Start({}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(ExplainHandshake((*server)->address(), Make("client", Role::kController), kTimeout),
            (*server)->address() + " speaks no TLS");
}

TEST_F(TlsFilesTest, ACallInPlainTextLearnsOfTls) {
  std::string address;
  const auto server = Serve(Make("server", Role::kServer), &address);
  const auto client = ControlClient::Create(address, {});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->GetStats(kTimeout).status(),
            absl::UnavailableError(absl::StrCat(
                "GetStats at ", address, ": ", address,
                " speaks TLS: it takes no call without a certificate, its private key and a CA")));
  ParameterServer::Service service;
  const auto plain = GrpcServer::Start({}, {&service});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(ExplainHandshake((*plain)->address(), {}, kTimeout), "");
}

// What `train` and `stats` show.
TEST_F(TlsFilesTest, ErrorsOfCallsSayWhy) {
  std::string address;
  const auto server =
      Serve(Make("old", Role::kServer, absl::FromUnixSeconds(1600000000)), &address);
  const auto client = ControlClient::Create(address, Make("client", Role::kController));
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status status = (*client)->GetStats(kTimeout).status();
  EXPECT_EQ(status, absl::UnavailableError(absl::StrCat(
                        "GetStats at ", address, ": the certificate that ", address,
                        " shows (thermocline://job/server) expired at 2020-09-13 13:26:40 UTC")));
}

}  // namespace
}  // namespace thermocline
