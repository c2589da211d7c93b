#include "common/net/rpc.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "common/net/host_port.h"
#include "tests/testing/test_certificates.h"

namespace thermocline {
namespace {

TEST(Status, EveryCodeSurvivesTheRoundTrip) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status) << code;
    EXPECT_EQ(static_cast<int>(ToGrpcStatus(status).error_code()), code);
  }
}

TEST(Status, AnEndWithoutAReasonIsABrokenConnection) {
  const absl::Status silent = FromGrpcStatus(grpc::Status(grpc::StatusCode::INTERNAL, ""));
  EXPECT_EQ(silent.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(silent.message(), "");
}

TEST(Status, AnAnswerOfAProcessThatEndsIsABrokenConnection) {
  const grpc::Status cancelled(grpc::StatusCode::CANCELLED, "CANCELLED");
  EXPECT_EQ(FromGrpcStatusOfAnswer(cancelled).code(), absl::StatusCode::kUnavailable);
  const grpc::Status refused(grpc::StatusCode::FAILED_PRECONDITION, "why");
  EXPECT_EQ(FromGrpcStatusOfAnswer(refused), FromGrpcStatus(refused));
}

TEST(Status, AConnectionThatNothingAnswersIsInPlainWords) {
  EXPECT_EQ(
      FromGrpcStatus(grpc::Status(grpc::StatusCode::UNAVAILABLE,
                                  "failed to connect to all addresses; last error: UNKNOWN: "
                                  "ipv4:10.0.0.9:7000: tcp handshaker shutdown")),
      absl::UnavailableError("failed to connect to all addresses; last error: UNKNOWN: "
                             "ipv4:10.0.0.9:7000: no answer; does a firewall close the port?"));
}

TEST(Status, LongMessagesAreCut) {
  const grpc::Status status = ToGrpcStatus(absl::InternalError(std::string(100000, 'x')));
  EXPECT_EQ(status.error_message(), std::string(kMaxStatusMessageBytes, 'x') + "...");
}

TEST(Status, ContextGoesInFrontAndKeepsTheCode) {
  EXPECT_EQ(WithContext(absl::NotFoundError("no table 3"), "Pull at server 1"),
            absl::NotFoundError("Pull at server 1: no table 3"));
  EXPECT_TRUE(WithContext(absl::OkStatus(), "Pull").ok());
}

TEST(Credentials, PlainTextIsForLoopback) {
  const TlsFiles none;
  for (const char* address :
       {"127.0.0.1:0", "127.1.2.3:80", "localhost:1", "[::1]:5", "[0::1]:5"}) {
    EXPECT_TRUE(CheckMayListen(address, none, false).ok()) << address;
  }
  for (const char* address : {"0.0.0.0:0", "[::]:0", "10.0.0.1:80", "a-host:1", "localhost.evil:1",
                              "127.example.org:80", "::1:5", "unix:/tmp/socket"}) {
    EXPECT_EQ(CheckMayListen(address, none, false).code(), absl::StatusCode::kInvalidArgument)
        << address;
    EXPECT_TRUE(CheckMayListen(address, none, true).ok()) << address;
    EXPECT_TRUE(CheckMayListen(address, {"c", "k", "a"}, false).ok()) << address;
  }
}

TEST(Credentials, NeedAllThreeFiles) {
  const TlsFiles all = MakeTestCertificates(::testing::TempDir(), "all");
  EXPECT_TRUE(MakeServerCredentials(all).ok());
  EXPECT_TRUE(MakeChannelCredentials(all).ok());
  for (std::string TlsFiles::*file :
       {&TlsFiles::certificate, &TlsFiles::private_key, &TlsFiles::ca}) {
    TlsFiles missing = all;
    (missing.*file).clear();
    EXPECT_EQ(MakeServerCredentials(missing).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(MakeChannelCredentials(missing).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Credentials, NameTheFileThatIsWrong) {
  const TlsFiles all = MakeTestCertificates(::testing::TempDir(), "wrong");
  TlsFiles files = all;
  files.ca = ::testing::TempDir() + "/no-such-file.pem";
  const absl::Status missing = MakeServerCredentials(files).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(missing.message(), "no-such-file.pem")) << missing;
  files.ca = ::testing::TempDir() + "/garbage.pem";
  std::ofstream(files.ca) << "garbage";
  const absl::Status garbage = MakeServerCredentials(files).status();
  EXPECT_EQ(garbage.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(garbage.message(), "garbage.pem")) << garbage;
}

TEST(Loopback, NamesAndAddresses) {
  for (const char* host :
       {"localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]", "0:0:0:0:0:0:0:1", "[0::1]"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"", "0.0.0.0", "10.0.0.1", "128.0.0.1", "127.example.org",
                           "localhost.example.org", "::", "[::]", "[::2]", "[::1", "::1]",
                           "[127.0.0.1]", "[localhost]", "unix", "127.0.0.1:80"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

TEST(Peers, AddressesHaveOneText) {
  EXPECT_EQ(IpAddress("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(IpAddress("fd00:0:0::0002"), "fd00::2");
  EXPECT_EQ(IpAddress("::ffff:10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(IpAddress("10.0.0.1.cluster"), std::nullopt);
  EXPECT_EQ(IpAddress(""), std::nullopt);
}

TEST(Peers, TheHostIsFoundInWhatGrpcSays) {
  EXPECT_EQ(HostOfPeer("ipv4:10.0.0.1:4000"), "10.0.0.1");
  EXPECT_EQ(HostOfPeer("ipv6:%5Bfd00::2%5D:4000"), "fd00::2");
  EXPECT_EQ(HostOfPeer("ipv6:[::ffff:10.0.0.1]:4000"), "10.0.0.1");
  EXPECT_EQ(HostOfPeer("ipv6:%5Bfe80::1%25eth0%5D:4000"), "fe80::1");
  EXPECT_EQ(HostOfPeer("unix:/tmp/socket"), "");
  EXPECT_EQ(HostOfPeer("unknown"), "");
}

}  // namespace
}  // namespace thermocline
