#include "deploy/http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/net/x509.h"
#include "tests/testing/test_certificates.h"

namespace thermocline {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

int ListenOnLoopback(uint16_t* port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(fd, any, size), 0);
  EXPECT_EQ(listen(fd, 16), 0);
  EXPECT_EQ(getsockname(fd, any, &size), 0);
  *port = ntohs(address.sin_port);
  return fd;
}

int ConnectTo(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// All that comes until the server closes the connection.
std::string ReadAnswer(int fd) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
  return text;
}

class HttpServerTest : public testing::Test {
 protected:
  void Start(const HttpLimits& limits, const TlsFiles& tls = {}) {
    auto server =
        HttpServer::Start(ListenOnLoopback(&port_), tls, limits, [](const HttpRequest& request) {
          HttpAnswer answer;
          answer.body = absl::StrCat(
              request.method, " ", request.path, " host=", request.host,
              " cursor=", request.cursor.value_or("none"),
              " peer=", request.peer.has_value() ? RoleName(request.peer->role) : "none", "\n");
          answer.headers.emplace_back("X-Test", "1");
          return answer;
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string Ask(const std::string& request) const {
    const int fd = ConnectTo(port_);
    EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    return ReadAnswer(fd);
  }

  uint16_t port_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersOneRequestAConnection) {
  Start(HttpLimits());
  const std::string answer =
      Ask("GET /api/job?cursor=a%20b HTTP/1.1\r\nHost: h:1\r\nAccept-Encoding: gzip\r\n"
          "Range: bytes=0-3\r\n\r\nGET / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(answer, HasSubstr("X-Test: 1\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nGET /api/job host=h:1 cursor=a b peer=none\n"));
}

TEST_F(HttpServerTest, HeadHasNoBodyAndTwoHostsAreNone) {
  Start(HttpLimits());
  EXPECT_THAT(Ask("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n"), EndsWith("\r\n\r\n"));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), HasSubstr("host= cursor"));
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"),
              HasSubstr("POST / host=h"));
}

TEST_F(HttpServerTest, WhatIsNoRequestIsRefused) {
  Start(HttpLimits());
  EXPECT_THAT(Ask("nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask(absl::StrCat("GET /", std::string(9000, 'a'), " HTTP/1.1\r\n\r\n")),
              StartsWith("HTTP/1.1 414"));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ARequestOfTooManyBytesGetsNoAnswer) {
  HttpLimits limits;
  limits.request_bytes = 1000;
  Start(limits);
  std::string request = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 50; ++i) absl::StrAppend(&request, "X-Header-", i, ": value\r\n");
  request.resize(1000);
  EXPECT_THAT(Ask(request), Not(HasSubstr("200 OK")));
}

// With one thread, each connection waits until those before it have ended.
TEST_F(HttpServerTest, ASlowClientIsCutOff) {
  HttpLimits limits;
  limits.connections = 1;
  limits.request_time = absl::Milliseconds(50);
  Start(limits);
  const int silent = ConnectTo(port_);
  const int half = ConnectTo(port_);
  EXPECT_EQ(send(half, "GET / HT", 8, MSG_NOSIGNAL), 8);
  EXPECT_THAT(ReadAnswer(silent), Not(HasSubstr("200 OK")));
  EXPECT_THAT(ReadAnswer(half), Not(HasSubstr("200 OK")));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

class HttpServerTlsTest : public HttpServerTest {
 protected:
  using ContextPtr = std::unique_ptr<SSL_CTX, x509::Freer<SSL_CTX_free>>;
  using SslPtr = std::unique_ptr<SSL, x509::Freer<SSL_free>>;

  void SetUp() override {
    own_ = MakeTestCertificates(testing::TempDir(), "own");
    Start(HttpLimits(), own_);
  }
  // The answer to a client with such a certificate; "": the server takes none.
  std::string AskWith(const TlsFiles& files, int version = TLS1_3_VERSION) const {
    const ContextPtr context(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_min_proto_version(context.get(), TLS1_VERSION);
    SSL_CTX_set_max_proto_version(context.get(), version);
    if (!files.empty()) {
      EXPECT_EQ(SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()), 1);
      EXPECT_EQ(
          SSL_CTX_use_PrivateKey_file(context.get(), files.private_key.c_str(), SSL_FILETYPE_PEM),
          1);
    }
    const SslPtr ssl(SSL_new(context.get()));
    const int fd = ConnectTo(port_);
    SSL_set_fd(ssl.get(), fd);
    const std::string request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    std::string answer;
    if (SSL_connect(ssl.get()) == 1 &&
        SSL_write(ssl.get(), request.data(), static_cast<int>(request.size())) > 0) {
      char buffer[4096];
      int got = 0;
      while ((got = SSL_read(ssl.get(), buffer, sizeof(buffer))) > 0) {
        answer.append(buffer, static_cast<size_t>(got));
      }
    }
    ERR_clear_error();
    close(fd);
    return answer;
  }

  TlsFiles own_;
};

TEST_F(HttpServerTlsTest, ClientsMayShowACertificateOfTheAuthority) {
  const std::string folder = testing::TempDir();
  EXPECT_THAT(AskWith({}), EndsWith("peer=none\n"));
  EXPECT_THAT(AskWith({}, TLS1_2_VERSION), EndsWith("peer=none\n"));
  EXPECT_EQ(AskWith({}, TLS1_1_VERSION), "");
  EXPECT_THAT(AskWith(SignTestCertificate(folder, "own", "reader", "thermocline://j/reader")),
              EndsWith("peer=reader\n"));
  EXPECT_THAT(AskWith(own_), EndsWith("peer=none\n"));  // It names no role.
  MakeTestCertificates(folder, "other");
  EXPECT_EQ(AskWith(SignTestCertificate(folder, "other", "alien", "thermocline://j/reader")), "");
}

TEST_F(HttpServerTlsTest, PlainTextIsNotAnswered) {
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), Not(HasSubstr("200 OK")));
}

}  // namespace
}  // namespace thermocline
