#include "deploy/cli/job_certificates.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/net/certificates.h"
#include "common/net/tls_files.h"

namespace thermocline {
namespace {

class JoinCertificatesTest : public testing::Test {
 protected:
  JoinCertificatesTest() : directory_(MakeDirectory()) {
    job_.set_name("j");
    job_.mutable_cluster()->mutable_tls()->set_automatic(true);
    job_.mutable_cluster()->set_listen_host("127.0.0.1");
  }

  static RunDirectory MakeDirectory() {
    std::string name = testing::TempDir() + "/certificates_XXXXXX";
    return *RunDirectory::Open(mkdtemp(name.data()));
  }
  // The files that a start at `now` leaves, by name.
  std::map<std::string, std::string> Make(absl::Time now, const std::string& listen = "") {
    const absl::Status made = MakeJoinCertificates(directory_, listen, &job_, now);
    EXPECT_EQ(made, absl::OkStatus());
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
      std::ifstream file(entry.path());
      files[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
    }
    return files;
  }
  std::string Folder() const { return directory_.File("certificates"); }
  void ExpectGood(Role role, absl::Time at) {
    const auto texts = ReadTlsFiles(TlsFilesIn(Folder(), role), TlsUse::kClient, at);
    ASSERT_TRUE(texts.ok()) << texts.status();
    EXPECT_EQ(IdentityOf(texts->certificate), (Identity{job_.name(), role}));
  }

  const RunDirectory directory_;
  Job job_;
  const absl::Time begin_ = absl::Now();
};

TEST_F(JoinCertificatesTest, AStartThatComesSoonKeepsThem) {
  const auto first = Make(begin_);
  EXPECT_EQ(first.size(), 6u);
  EXPECT_EQ(Make(begin_ + absl::Hours(24 * 200)), first);
}

TEST_F(JoinCertificatesTest, NewOnesComeBeforeTheOldExpire) {
  auto first = Make(begin_, "127.0.0.1:7070");
  const absl::Time later = begin_ + absl::Hours(24 * 300);
  auto second = Make(later, "127.0.0.1:7070");
  for (const Role role : {Role::kNode, Role::kReader, Role::kController}) {
    ExpectGood(role, later + kLeastValidity);
    EXPECT_NE(second[absl::StrCat(RoleName(role), ".pem")],
              first[absl::StrCat(RoleName(role), ".pem")]);
  }
  EXPECT_EQ(second["ca.pem"], first["ca.pem"]);
  EXPECT_EQ(second["ca.key"], first["ca.key"]);
}

TEST_F(JoinCertificatesTest, ANewAuthorityComesBeforeTheOldExpires) {
  auto first = Make(begin_);
  const absl::Time later = begin_ + kAuthorityLifetime - absl::Hours(1);
  EXPECT_NE(Make(later)["ca.pem"], first["ca.pem"]);
  ExpectGood(Role::kNode, later + kLeastValidity);
}

TEST_F(JoinCertificatesTest, TheAuthorityOfAnotherJobIsNotReplaced) {
  const auto first = Make(begin_);
  job_.set_name("k");
  EXPECT_EQ(MakeJoinCertificates(directory_, "", &job_, begin_).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(MakeCertificates(directory_, &job_).code(), absl::StatusCode::kFailedPrecondition);
  job_.set_name("j");
  EXPECT_EQ(Make(begin_), first);
}

TEST_F(JoinCertificatesTest, AStartOnOneHostReplacesItsOwnFilesAlone) {
  ASSERT_EQ(MakeCertificates(directory_, &job_), absl::OkStatus());
  std::ofstream(Folder() + "/thesis.txt") << "precious";
  ASSERT_EQ(MakeCertificates(directory_, &job_), absl::OkStatus());
  ExpectGood(Role::kServer, begin_);
  EXPECT_TRUE(std::filesystem::exists(Folder() + "/thesis.txt"));
  // The key of an authority stays, and signs.
  auto joined = Make(begin_);
  ASSERT_EQ(MakeCertificates(directory_, &job_), absl::OkStatus());
  EXPECT_EQ(Make(begin_)["ca.key"], joined["ca.key"]);
  ExpectGood(Role::kServer, begin_);
}

TEST_F(JoinCertificatesTest, OneThatIsGoneIsMadeAgain) {
  auto first = Make(begin_);
  std::filesystem::remove(Folder() + "/node.key");
  EXPECT_EQ(Make(begin_)["ca.pem"], first["ca.pem"]);
  ExpectGood(Role::kNode, begin_);
}

}  // namespace
}  // namespace thermocline
