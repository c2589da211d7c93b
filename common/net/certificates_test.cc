#include "common/net/certificates.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/net/tls_files.h"
#include "tests/testing/test_certificates.h"

namespace thermocline {
namespace {

constexpr absl::Duration kDay = absl::Hours(24);

std::string NewFolder(const std::string& name) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/certificates-", name);
  std::filesystem::remove_all(folder);
  return folder;
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(Identity, IsAUri) {
  for (const Role role : kAllRoles) {
    const Identity identity = {"a-job_7", role};
    EXPECT_EQ(ParseIdentityUri(IdentityUri(identity)), identity) << RoleName(role);
  }
  EXPECT_EQ(IdentityUri({"j", Role::kWorker}), "thermocline://j/worker");
  for (const char* other :
       {"", "thermocline://j", "thermocline:///worker", "thermocline://j/", "thermocline://j/root",
        "thermocline://j/worker/", "thermocline://j/Worker", "http://j/worker",
        "thermocline://j.k/worker", "thermocline://j/authority"}) {
    EXPECT_FALSE(ParseIdentityUri(other).has_value()) << other;
  }
}

TEST(CertificateAuthority, SignsARoleOfItsJob) {
  const auto authority = CertificateAuthority::Create("job");
  ASSERT_TRUE(authority.ok()) << authority.status();
  for (const Role role : kAllRoles) {
    const auto made = MakeKeyAndRequest();
    ASSERT_TRUE(made.ok()) << made.status();
    const auto certificate = authority->Sign(made->request, role, {"127.0.0.1", "::1", "h1"}, kDay);
    ASSERT_TRUE(certificate.ok()) << certificate.status();
    EXPECT_EQ(IdentityOf(*certificate), (Identity{"job", role}));
  }
  EXPECT_FALSE(IdentityOf(authority->ca_pem()).has_value());
}

TEST(CertificateAuthority, RefusesOtherNamesOfJobs) {
  for (const char* job : {"", "a/b", "a b", "a\nb", "a.b"}) {
    EXPECT_EQ(CertificateAuthority::Create(job).status().code(), absl::StatusCode::kInvalidArgument)
        << job;
  }
}

TEST(CertificateAuthority, RefusesBadRequests) {
  const auto authority = CertificateAuthority::Create("job");
  const auto sign = [&](const std::string& request, const std::string& host) {
    return authority->Sign(request, Role::kWorker, {host}, kDay).status();
  };
  const std::string request = MakeKeyAndRequest()->request;
  EXPECT_TRUE(sign(request, "h1").ok());
  for (const char* host : {"", "h1,URI:thermocline://job/controller", "h 1", "h1\n", "[h1", "ö"}) {
    EXPECT_EQ(sign(request, host).code(), absl::StatusCode::kInvalidArgument) << host;
  }
  EXPECT_EQ(sign("", "h1").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sign(authority->ca_pem(), "h1").code(), absl::StatusCode::kInvalidArgument);
  // A key that is easy to break, or only slow: those of others' tools.
  const std::string folder = NewFolder("rsa");
  std::filesystem::create_directory(folder);
  ASSERT_EQ(std::system(absl::StrCat("openssl req -nodes -newkey rsa:1024 -subj /CN=x -keyout ",
                                     folder, "/key -out ", folder, "/request 2>/dev/null")
                            .c_str()),
            0);
  const absl::Status rsa = sign(TextOf(folder + "/request"), "h1");
  EXPECT_EQ(rsa.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(rsa.message(), "P-256")) << rsa;
}

TEST(CertificateAuthority, IgnoresWhatARequestAsksFor) {
  const std::string folder = NewFolder("asks");
  std::filesystem::create_directory(folder);
  ASSERT_EQ(std::system(absl::StrCat("openssl req -nodes -newkey ec -pkeyopt "
                                     "ec_paramgen_curve:prime256v1 -subj /CN=x -addext "
                                     "subjectAltName=URI:thermocline://job/controller -keyout ",
                                     folder, "/key -out ", folder, "/request 2>/dev/null")
                            .c_str()),
            0);
  const auto certificate = CertificateAuthority::Create("job")->Sign(TextOf(folder + "/request"),
                                                                     Role::kReader, {}, kDay);
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  EXPECT_EQ(IdentityOf(*certificate), (Identity{"job", Role::kReader}));
}

TEST(CertificateAuthority, IsReadBack) {
  const auto one = CertificateAuthority::Create("one");
  const auto other = CertificateAuthority::Create("other");
  const auto again = CertificateAuthority::FromPem(one->ca_pem(), one->private_key_pem(), "x");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->job(), "one");
  EXPECT_TRUE(again->Sign(MakeKeyAndRequest()->request, Role::kNode, {}, kDay).ok());

  const auto error = [&](const std::string& certificate, const std::string& key) {
    return CertificateAuthority::FromPem(certificate, key, "'dir'").status();
  };
  const auto made = MakeKeyAndRequest();
  const auto leaf = one->Sign(made->request, Role::kServer, {}, kDay);
  EXPECT_EQ(error(one->ca_pem(), other->private_key_pem()).message(),
            "'dir' has a private key of another certificate");
  EXPECT_EQ(error(*leaf, made->private_key).message(), "'dir' is not the authority of a job");
  EXPECT_EQ(error("", one->private_key_pem()).message(), "'dir' has no certificate");
  EXPECT_EQ(error(one->ca_pem(), "").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LoadAuthority(NewFolder("none")).status().code(), absl::StatusCode::kNotFound);
}

TEST(Certificates, AreWrittenForTheirOwnerAlone) {
  const std::string folder = NewFolder("written");
  const auto authority = CertificateAuthority::Create("job");
  const std::vector<Role> roles = {Role::kServer, Role::kReader};
  ASSERT_TRUE(WriteCertificates(*authority, folder, roles, {"h1"}, kDay).ok());
  struct stat found;
  ASSERT_EQ(stat(folder.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  for (const char* file : {"ca.pem", "server.pem", "server.key", "reader.pem", "reader.key"}) {
    ASSERT_EQ(stat(absl::StrCat(folder, "/", file).c_str(), &found), 0) << file;
    EXPECT_EQ(found.st_mode & 0777, 0600u) << file;
  }
  EXPECT_FALSE(std::filesystem::exists(folder + "/worker.pem"));
  const auto texts = ReadTlsFiles(TlsFilesIn(folder, Role::kServer), TlsUse::kServer);
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(texts->ca, authority->ca_pem());
}

TEST(Certificates, AreNotOverwritten) {
  const std::string folder = NewFolder("kept");
  const auto authority = CertificateAuthority::Create("job");
  ASSERT_TRUE(WriteCertificates(*authority, folder, {Role::kServer}, {}, kDay).ok());
  const std::string key = TextOf(folder + "/server.key");
  const absl::Status refused =
      WriteCertificates(*authority, folder, {Role::kReader, Role::kServer}, {}, kDay);
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "ca.pem")) << refused;
  EXPECT_EQ(TextOf(folder + "/server.key"), key);
  EXPECT_FALSE(std::filesystem::exists(folder + "/reader.pem"));

  EXPECT_EQ(WritePrivateFile(folder + "/server.key", "new", false).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(WritePrivateFile(folder + "/server.key", "new", true).ok());
  EXPECT_EQ(TextOf(folder + "/server.key"), "new");
  const absl::Status missing = WritePrivateFile(folder + "/no/file", "x", true);
  EXPECT_EQ(missing.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(missing.message(), folder + "/no/file")) << missing;
}

}  // namespace
}  // namespace thermocline
